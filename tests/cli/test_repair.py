"""The repair of media packages, in virtual environments that hold small packages with the faults of the real ones."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TORCH = """
import types
ops = types.SimpleNamespace(torchvision=types.SimpleNamespace())
class Library:
    def __init__(self, namespace, kind):
        assert (namespace, kind) == ("torchvision", "FRAGMENT")
    def define(self, schema):
        name = schema.split("(")[0]
        assert not hasattr(ops.torchvision, name), "defined twice"
        setattr(ops.torchvision, name, schema)
def register_fake(name):
    if not hasattr(ops.torchvision, name.split("::")[1]):
        raise RuntimeError(f"operator {name} does not exist")
library = types.SimpleNamespace(Library=Library, register_fake=register_fake)
"""
EXTENSION = "import torch\n\n\ndef _has_ops():\n    return False\n"


class Environment:
    def __init__(self, folder: Path, *, with_pip: bool = False) -> None:
        venv.create(folder, with_pip=with_pip, symlinks=True)
        self.python = folder / "bin" / "python"
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))

    def package(self, name: str, files: dict[str, str], version: str = "1.0") -> Path:
        info = self.packages / f"{name}-{version}.dist-info"
        record = ""
        for path, text in files.items():
            (self.packages / name).mkdir(exist_ok=True)
            (self.packages / name / path).write_text(text)
            record += f"{name}/{path},,\n"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text(
            record + "".join(f"{info.name}/{file},,\n" for file in ("METADATA", "INSTALLER", "RECORD"))
        )
        return self.packages / name

    def torchvision(self, *, operators: tuple[str, ...] = ("nms",)) -> Path:
        registrations = "".join(f"torch.library.register_fake('torchvision::{name}')\n" for name in operators)
        return self.package(
            "torchvision",
            {
                "__init__.py": "import torch\nfrom . import extension\nfrom . import registrations\n",
                "extension.py": EXTENSION,
                "registrations.py": "import torch\n" + registrations,
                "transforms.py": "",
            },
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.packages,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def repair(self) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "envhub.cli.repair")

    def imports(self, name: str) -> bool:
        return self.run("-c", f"import {name}").returncode == 0


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "venv")
    made.package("torch", {"__init__.py": TORCH})
    return made


def test_with_vllm_the_missing_operators_are_declared(environment: Environment) -> None:
    environment.package("vllm", {"__init__.py": ""})
    folder = environment.torchvision()
    assert not environment.imports("torchvision")

    done = environment.repair()
    assert (done.returncode, done.stderr) == (0, "")
    assert "torchvision 1.0 did not fit the installed torch: declared its missing operators" in done.stdout
    assert environment.imports("torchvision")

    repaired = (folder / "extension.py").read_text()
    again = environment.repair()
    assert (again.returncode, again.stdout) == (0, "")
    assert (folder / "extension.py").read_text() == repaired


def test_a_repaired_file_is_a_new_one_so_that_linked_copies_stay_as_they_are(environment: Environment) -> None:
    environment.package("vllm", {"__init__.py": ""})
    folder = environment.torchvision()
    os.link(folder / "extension.py", folder.parent / "copy.py")
    assert environment.repair().returncode == 0
    assert (folder.parent / "copy.py").read_text() == EXTENSION


def test_an_operator_that_cannot_be_declared_leaves_the_package_untouched(environment: Environment) -> None:
    environment.package("vllm", {"__init__.py": ""})
    folder = environment.torchvision(operators=("nms", "hyperspace"))
    done = environment.repair()
    assert done.returncode == 1
    assert "still does not import" in done.stdout
    assert "torchvision::hyperspace" in done.stdout
    assert (folder / "extension.py").read_text() == EXTENSION
    assert list(folder.glob(".extension*")) == []


def test_another_fault_is_reported_and_not_touched(environment: Environment) -> None:
    folder = environment.package("torchvision", {"__init__.py": "import no_such_thing", "extension.py": EXTENSION})
    done = environment.repair()
    assert done.returncode == 1
    assert "a reason of its own: ModuleNotFoundError: No module named 'no_such_thing'" in done.stdout
    assert (folder / "extension.py").read_text() == EXTENSION


def test_what_works_or_is_absent_is_left_alone(environment: Environment) -> None:
    environment.package("torchaudio", {"__init__.py": ""})
    done = environment.repair()
    assert (done.returncode, done.stdout) == (0, "")
    assert environment.imports("torchaudio")


def test_without_vllm_what_does_not_fit_is_uninstalled(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv", with_pip=True)
    environment.package("torch", {"__init__.py": TORCH})
    environment.torchvision()
    environment.package("torchaudio", {"__init__.py": "raise OSError('Could not load this library: x.so')"})
    environment.package("torchcodec", {"__init__.py": ""})
    done = environment.repair()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torchvision 1.0 does not fit the installed torch and is not needed: uninstalled it" in done.stdout
    assert "torchaudio 1.0 does not fit" in done.stdout
    assert not (environment.packages / "torchvision").exists()
    assert not (environment.packages / "torchaudio").exists()
    assert environment.imports("torchcodec")
