"""`envhub sandbox`: run a file or a shell, and remove what killed sandboxes left."""

import fcntl
import io
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

from envhub.cli.app import run as cli
from envhub.sandbox import TIERS, best_tier, leases
from envhub.sandbox.box import FOLDERS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "solution.py"
    place.write_text("import os, sys\nprint('got', input(), sorted(os.environ))\nsys.stderr.write('seen\\n')\n")
    return place


@pytest.mark.parametrize("tier", [None, *TIERS])
def test_a_file_is_run_as_a_submission(tier: str | None, file: Path, capfd: pytest.CaptureFixture[str]):
    if tier is not None and TIERS[tier].missing():
        pytest.skip(TIERS[tier].missing())
    (file.parent / "in").write_text("hello")
    given = ["--stdin", str(file.parent / "in"), *([] if tier is None else ["--tier", tier])]
    assert cli(["sandbox", "run", str(file), *given]) == 0
    out, err = capfd.readouterr()
    assert out == "got hello []\n"
    assert err.startswith("seen\nenvhub: ok, exit code 0, ") and err.endswith(f"tier {tier or best_tier()}\n")


@pytest.mark.parametrize(
    ("source", "flags", "said"),
    [
        ("raise SystemExit(3)", [], "error, exit code 3"),
        ("1/0", [], "ZeroDivisionError"),
        ("while True: pass", ["--wall-seconds", "0.5"], "timeout"),
        ("print('x' * 10_000)", ["--output-kb", "1"], "output_limit"),
        ("def", [], "syntax_error"),
    ],
)
def test_what_fails_says_how(
    source: str, flags: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = tmp_path / "solution.py"
    file.write_text(source)
    assert cli(["sandbox", "run", str(file), *flags]) == 1
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("content", "flags", "said"),
    [
        (None, [], "cannot read {}: No such file or directory"),
        (b"\xff", [], "{} is no UTF-8 text"),
        (b"", ["--tier", "slots"], "no sandbox tier named 'slots'; did you mean 'slot'"),
        (b"", ["--wall-seconds", "0"], "wall_seconds"),
        (b"", ["--wall-seconds", "inf"], "wall_seconds"),
        (b"", ["--memory-mb", "-1"], "memory_mb"),
        (b"", ["--stdin", "nowhere"], "cannot read nowhere"),
    ],
)
def test_a_mistake_is_named(
    content: bytes | None, flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "solution.py"
    if content is not None:
        file.write_bytes(content)
    assert cli(["sandbox", "run", str(file), *flags]) == 2
    assert said.format(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "source", "flags"),
    [
        ("hello.sh", "echo hello from a script", []),
        ("hello.c", '#include <stdio.h>\nint main(void) { puts("hello from a script"); }', []),
        ("hello", "console.log('hello from a script')", ["--language", "javascript"]),
    ],
)
def test_files_of_other_languages_are_run_too(
    name: str, source: str, flags: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / name).write_text(source)
    assert cli(["sandbox", "run", str(tmp_path / name), *flags]) == 0
    assert capfd.readouterr().out == "hello from a script\n"


def test_a_file_of_no_known_language_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x.rb").write_text("puts 1")
    assert cli(["sandbox", "run", str(tmp_path / "x.rb")]) == 2
    assert "x.rb has no ending that tells its language (.py, .js" in capsys.readouterr().err


@pytest.mark.parametrize("tier", TIERS)
def test_a_shell_runs_the_commands_of_its_stdin(
    tier: str, file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    if TIERS[tier].missing():
        pytest.skip(TIERS[tier].missing())
    commands = io.TextIOWrapper(io.BytesIO(b"ls\nsort < solution.py | head -n 1; exit 3\n"))
    monkeypatch.setattr("sys.stdin", commands)
    assert cli(["sandbox", "shell", str(file), "--tier", tier]) == 1
    out, err = capfd.readouterr()
    assert out == "solution.py\nimport os, sys\n" and "envhub: exited, exit code 3" in err


def test_a_shell_without_its_file_is_refused(capsys: pytest.CaptureFixture[str]):
    assert cli(["sandbox", "shell", "nowhere.py"]) == 2
    assert "cannot read nowhere.py: No such file or directory" in capsys.readouterr().err


def test_a_person_has_a_shell_on_the_terminal(file: Path):
    """With its echo, its size and Ctrl-C, which interrupts the program and not envhub."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-m", "envhub.cli", "sandbox", "shell", str(file)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([terminal], [], [], 1.0)[0]:
                seen += os.read(terminal, 4096)

    try:
        until(b"$ ")
        for typed, shown in (
            (b"ls; stty size; bash -c 'echo be''gun; exec sleep 100'\n", b"begun\r\n"),
            (b"\x03echo $((6 * 7))\n", b"42\r\n"),
            (b"exit 5\n", b"envhub: exited, exit code 5"),
        ):
            os.write(terminal, typed)
            until(shown)
        assert b"solution.py" in seen and b"33 99" in seen
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    finally:
        os.close(terminal)


def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, namespace = leases.label(), leases.label().partition("-")[0]
    kept = [tmp_path / f"{FOLDERS}-{mine}-x", tmp_path / f"{FOLDERS}-1-999999-5-x", tmp_path / "other"]
    left = tmp_path / f"{FOLDERS}-{namespace}-999999999-5-x"
    for place in (*kept, left / "deep" / "er"):
        place.mkdir(parents=True)
    (left / "deep" / "file").write_text("x")
    assert cli(["sandbox", "gc"]) == 0
    assert f"removed {left}\n1 left behind" in capsys.readouterr().out
    assert not left.exists() and all(place.exists() for place in kept)
    assert cli(["sandbox", "gc"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
