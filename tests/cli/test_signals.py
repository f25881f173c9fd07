"""The command line ends when it is told to, whatever the environment does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEAF = """
import asyncio, pathlib
from envhub import Environment
class Deaf(Environment):
    async def reset(self, *, seed=None, options=None):
        pathlib.Path({mark!r}).touch()
        while True:
            try:
                {wait}
            except BaseException:
                pass
"""


def _start(tmp_path: Path, wait: str, *before: str) -> "subprocess.Popen[str]":
    mark = tmp_path / "mark"
    (tmp_path / "deaf.py").write_text(DEAF.format(mark=str(mark), wait=wait))
    command = [
        *before,
        sys.executable,
        "-c",
        "from envhub.cli.app import main; main()",
        "eval",
        "deaf.py",
        "--model",
        "scripted:null",
        "--tasks",
        "1",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    assert mark.exists(), process.communicate()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_coroutine_that_ignores_its_cancellation_does_not_hold_the_process(tmp_path: Path, number: int) -> None:
    process = _start(tmp_path, "await asyncio.sleep(60)")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "envhub: interrupted"


def test_a_process_in_the_background_of_a_script_ends_cleanly_too(tmp_path: Path) -> None:
    process = _start(tmp_path, "await asyncio.sleep(60)", "/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "envhub: interrupted"


def test_a_second_sigterm_ends_a_process_whose_loop_is_held(tmp_path: Path) -> None:
    process = _start(tmp_path, "__import__('time').sleep(60)")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


LEFT = """
import asyncio
from envhub import Environment
async def forever():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
class Left(Environment):
    async def reset(self, *, seed=None, options=None):
        self.task = asyncio.get_running_loop().create_task(forever())
        return "x", {}
    async def step(self, action):
        return "", 1.0, True, False, {}
"""


def test_a_task_that_an_environment_leaves_behind_does_not_hold_the_process(tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(LEFT)
    command = [sys.executable, "-m", "envhub.cli", "eval", "left.py", "--model", "scripted:null", "--tasks", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


HOSTILE = """
import asyncio
from envhub import Environment
async def work():
    await asyncio.sleep(0.01)
    {does}
class Hostile(Environment):
    async def reset(self, *, seed=None, options=None):
        self.task = asyncio.get_running_loop().create_task(work())
        await asyncio.sleep(0.1)
        return "x", {{}}
    async def step(self, action):
        return "", 1.0, True, False, {{}}
"""


def _evaluate(tmp_path: Path, does: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "hostile.py").write_text(HOSTILE.format(does=does))
    command = [sys.executable, "-m", "envhub.cli", "eval", "hostile.py", "--model", "scripted:null", "--tasks", "3"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("raise SystemExit(3)", "SystemExit: 3 ("),
        ("raise KeyboardInterrupt", "KeyboardInterrupt ("),
        ("asyncio.get_running_loop().stop()", "stopping the event loop; "),
        ("[task.cancel() for task in asyncio.all_tasks()]", "cancelling the run's own; "),
    ],
)
def test_a_task_of_an_environment_that_ends_the_run_is_named(tmp_path: Path, does: str, said: str) -> None:
    done = _evaluate(tmp_path, does)
    assert done.returncode == 1
    line = next(line for line in done.stderr.splitlines() if line.startswith("envhub: code of an environment"))
    assert f"ended the run from a task of its own, by {said}" in line and "isolation = 'process'" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("does", ["1 / 0", "asyncio.get_running_loop().call_soon(lambda: 1 / 0)"])
def test_what_fails_in_the_background_is_a_note_in_one_line(tmp_path: Path, does: str) -> None:
    done = _evaluate(tmp_path, does)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("envhub: note: in the background, where no rollout waits for it: ZeroDivisionError")
    assert line.endswith("hostile.py:6)")
