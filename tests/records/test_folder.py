import errno
import fcntl
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envhub.errors import UserError
from envhub.records import RunFolder, read_json

HOLD = """
import sys
from pathlib import Path
from envhub.records import RunFolder
with RunFolder.open(Path(sys.argv[1])) as folder:
    folder.write_config({})
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that has opened a folder and lives."""
    path = tmp_path / "held"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "locked\n"
        yield process, path
        process.kill()


def test_a_folder_is_made_and_keeps_its_configuration(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "deep" / "run") as folder:
        folder.write_config({"steps": 3, "path": Path("x"), "text": "é"})
        assert folder.read_config() == {"steps": 3, "path": "x", "text": "é"}
    with RunFolder.open(tmp_path / "deep" / "run", resume=True) as again:
        assert again.read_config()["steps"] == 3


def test_a_folder_that_exists_is_not_taken(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run") as folder:
        folder.write_config({})
    with pytest.raises(UserError, match=r"run exists; go on with that evaluation \(--resume\), or give another name"):
        RunFolder.open(tmp_path / "run", what="evaluation")
    (tmp_path / "empty").mkdir()
    RunFolder.open(tmp_path / "empty").close()
    RunFolder.open(tmp_path / "empty").close()  # a run that ended before it had written anything
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="exists"):
        RunFolder.open(tmp_path / "full")
    with pytest.raises(UserError, match="no training to resume in .*full: it has no config.json"):
        RunFolder.open(tmp_path / "full", resume=True, what="training")
    assert [item.name for item in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_there_is_nothing_to_resume_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run to resume"):
        RunFolder.open(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


def test_a_folder_in_use_by_a_process_that_lives_is_refused(holder) -> None:
    process, path = holder
    with pytest.raises(UserError, match=rf"in use by process {process.pid}, since \d{{4}}-.*; wait for it"):
        RunFolder.open(path, resume=True)
    process.stdin.close()
    assert process.wait(60) == 0
    RunFolder.open(path, resume=True).close()


def test_the_folder_of_a_process_that_was_killed_is_free(holder) -> None:
    process, path = holder
    process.kill()
    process.wait(60)
    with RunFolder.open(path, resume=True), pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        RunFolder.open(path, resume=True)


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="file is a file; name another folder for the run"):
        RunFolder.open(file)
    with pytest.raises(UserError, match="cannot write the run's folder .*file/run: Not a directory"):
        RunFolder.open(file / "run")
    with pytest.raises(UserError, match="there is no run to resume"):
        RunFolder.open(file / "run", resume=True)
    with pytest.raises(UserError, match="File name too long"):
        RunFolder.open(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "is damaged"), ("[1]", "is damaged: it holds no object"), ("\xff", "is damaged"), (None, "cannot read")],
)
def test_a_damaged_configuration_is_named(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=f"config.json.* {problem}|{problem} .*config.json"):
        read_json(path)


@pytest.mark.parametrize("when", ["opened", "locked", "written"])
def test_a_lock_that_cannot_be_taken_is_named(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **how: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full(io.FileIO):
        write = fail

    opening = {"opened": fail, "locked": Path.open, "written": lambda path, *given, **how: Full(path, "a+")}[when]
    monkeypatch.setattr(Path, "open", opening)
    if when == "locked":
        monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(UserError, match=rf"cannot (write|lock) the run's folder {tmp_path}/run.*: No space left"):
        RunFolder.open(tmp_path / "run")
    monkeypatch.undo()
    RunFolder.open(tmp_path / "run").close()
