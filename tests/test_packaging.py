"""The wheel that pip builds from the tree holds what an installation needs, and nothing of the tests."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("envhub", "agents", "environments", "servers", "trainer")
FILES = ("pyproject.toml", "LICENSE", "README.md")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy: setuptools leaves a build folder behind, whose contents would get into later wheels.
    tree = tmp_path_factory.mktemp("tree")
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    for name in FILES:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree / name)
    made = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(made), str(tree)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = made.glob("envhub-*.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def shipped_files() -> set[str]:
    """Every file below `envhub/`, through its links, but for the tests of the environments."""
    found = set()
    for folder, subfolders, files in os.walk(ROOT / "envhub", followlinks=True):
        place = Path(folder).relative_to(ROOT)
        subfolders[:] = [name for name in subfolders if name != "__pycache__" and not name.startswith(".")]
        if place.parts[:2] == ("envhub", "environments") and "tests" in place.parts:
            continue
        found |= {(place / name).as_posix() for name in files if not name.startswith(".") and not name.endswith(".pyc")}
    return found


def test_every_file_of_the_package_is_in_the_wheel(names: set[str]) -> None:
    assert sorted(shipped_files() - names) == []


def test_the_wheel_holds_the_linked_folders_under_the_one_name(names: set[str]) -> None:
    for folder in FOLDERS[1:]:
        assert f"envhub/{folder}/__init__.py" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"envhub"}


def test_the_wheel_holds_no_tests_and_no_caches(names: set[str]) -> None:
    assert [name for name in sorted(names) if name.startswith("envhub/environments/") and "/tests/" in name] == []
    assert [name for name in sorted(names) if "__pycache__" in name] == []


def test_each_bundled_environment_brings_its_card(names: set[str]) -> None:
    bundled = [path.parent.name for path in sorted((ROOT / "environments").glob("*/README.md"))]
    assert [name for name in bundled if f"envhub/environments/{name}/README.md" not in names] == []


def test_the_package_imports_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    statement = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import envhub, envhub.agents.models, envhub.environments, envhub.servers, envhub.trainer\n"
        "print(envhub.__file__, envhub.agents.models.__file__, envhub.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", statement], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    package, models, version = done.stdout.split()
    assert Path(package).is_relative_to(tmp_path)
    assert Path(models).is_relative_to(tmp_path)
    assert wheel.name.split("-")[1] == version
