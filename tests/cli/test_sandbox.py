"""`envhub sandbox`: run a file, and remove what killed sandboxes left."""

import tempfile
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
    if tier == "slot" and TIERS["slot"].missing():
        pytest.skip(TIERS["slot"].missing())
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
