"""Imports tried in another process."""

import os
import sys
import time
from pathlib import Path

import pytest

from envhub.cli.probes import probe_import


def test_an_import_that_works_gives_its_output() -> None:
    probe = probe_import("import json; print('noise'); print(json.dumps([1]))")
    assert (probe.ok, probe.error, probe.output) == (True, "", "noise\n[1]")
    assert probe.seconds > 0


def test_an_import_that_fails_gives_the_last_line_of_its_traceback() -> None:
    probe = probe_import("import no_such_module_at_all")
    assert not probe.ok
    assert probe.error == "ModuleNotFoundError: No module named 'no_such_module_at_all'"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "killed by signal SIGSEGV"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os._exit(1)", "exit code 1"),
    ],
)
def test_a_process_that_dies_is_described(statement: str, said: str) -> None:
    probe = probe_import(statement)
    assert not probe.ok
    assert said in probe.error


def test_a_hanging_import_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    statement = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"while not os.path.exists({str(pid_file)!r}) or not open({str(pid_file)!r}).read(): time.sleep(0.01)\n"
        "time.sleep(600)"
    )
    probe = probe_import(statement, timeout=3)
    assert probe.error == "did not end within 3 s"
    pid = int(pid_file.read_text())
    for _ in range(500):  # the signal is sent; its effect on a process that is not ours to wait for may come later
        if not is_running(pid):
            break
        time.sleep(0.01)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_much_output_does_not_block_and_only_its_end_is_kept() -> None:
    probe = probe_import("import sys; sys.stderr.write('e' * 1_000_000); print('x' * 1_000_000); print('end')")
    assert probe.ok
    assert probe.output.endswith("x\nend")
    assert len(probe.output) <= 4000


def test_an_interpreter_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        probe_import("import json", python="/nowhere/python")
    assert probe_import("import json", python=sys.executable).ok
