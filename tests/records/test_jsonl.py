import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from envhub import Rollout
from envhub.errors import DataError, UserError
from envhub.records import JsonlWriter, read_rollouts, write_rollouts

from .rollouts import rollouts, small


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=rollouts())
def test_every_rollout_comes_back_as_it_was(made: Rollout, tmp_path: Path) -> None:
    assert write_rollouts(tmp_path / "r.jsonl", [made, made]) == 2
    assert list(read_rollouts(tmp_path / "r.jsonl")) == [made, made]
    assert (tmp_path / "r.jsonl").read_bytes().count(b"\n") == 2


def test_each_line_is_complete_when_write_returns(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "new" / "folder" / "r.jsonl") as writer:
        for count in range(1, 4):
            writer.write({"count": count, "text": "é\n"})
            lines = writer.path.read_text(encoding="utf-8").splitlines(keepends=True)
            assert len(lines) == count
            assert json.loads(lines[-1]) == {"count": count, "text": "é\n"}
            assert lines[-1].endswith("\n")


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for index in range(2):
        with JsonlWriter(path) as writer:
            writer.write(small(index).to_dict())
    assert [item.task.index for item in read_rollouts(path)] == [0, 1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b', b'{"a": 1}\n'),
        (b'{"b', b""),
        (b'{"a": 1}\n{"b": "\xc3', b'{"a": 1}\n'),
        (b'{"a": 1}\n' + b"x" * 200_000, b'{"a": 1}\n'),
        (b"x" * 200_000, b""),
        (b"x" * 65_536 + b"\n" + b"x" * 65_536, b"x" * 65_536 + b"\n"),
    ],
)
def test_a_last_line_that_was_left_unfinished_is_cut_off(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(before)
    with JsonlWriter(path) as writer:
        writer.write({"c": 2})
    assert path.read_bytes() == after + b'{"c": 2}\n'


def test_lines_of_a_process_that_is_killed_are_kept(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom envhub.records import JsonlWriter\n"
        "writer = JsonlWriter(Path(sys.argv[1]))\nwriter.write({'a': 1})\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "r.jsonl"
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert path.read_text() == '{"a": 1}\n'


def test_what_has_no_json_form_becomes_text(tmp_path: Path) -> None:
    odd = {"set": {1}, "path": Path("x"), (1, 2): [{("a", "b"): None}, {3: "three"}], "surrogate": "\udcff"}
    with JsonlWriter(tmp_path / "r.jsonl") as writer:
        writer.write({"info": odd})
    assert json.loads((tmp_path / "r.jsonl").read_text())["info"] == {
        "set": "{1}",
        "path": "x",
        "(1, 2)": [{"('a', 'b')": None}, {"3": "three"}],
        "surrogate": "\udcff",
    }


@pytest.mark.parametrize("key", ["again", ("a", "key")])
def test_what_holds_itself_is_refused_and_leaves_no_line(tmp_path: Path, key: object) -> None:
    value: dict = {}
    value[key] = value
    with JsonlWriter(tmp_path / "r.jsonl") as writer, pytest.raises(UserError, match="cannot be written as JSON"):
        writer.write({"info": value})
    assert (tmp_path / "r.jsonl").read_bytes() == b""


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "r.jsonl", tmp_path / "folder"):
        for use in (JsonlWriter, lambda path: write_rollouts(path, [])):
            with pytest.raises(UserError, match=f"cannot write {path}"):
                use(path)


def test_a_full_disk_is_a_users_error() -> None:
    writer = JsonlWriter(Path("/dev/full"))
    with pytest.raises(UserError, match="cannot write /dev/full: No space left on device"):
        writer.write({"a": 1})


def test_write_rollouts_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_rollouts(path, [small(0), small(1)])
    assert write_rollouts(path, [small(2)]) == 1
    assert [item.task.index for item in read_rollouts(path)] == [2]
    assert write_rollouts(path, []) == 0
    assert list(read_rollouts(path)) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "line 2: no rollout record"),
        (b"[]", "line 2: no rollout record"),
        (b"3", "line 2: no rollout record"),
        (b'{"id": "x"}', "line 2: no rollout record"),
        (b'{"version": 99}', "line 2: no rollout record: a rollout record of version 99"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "r.jsonl"
    write_rollouts(path, [small()])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=f"{path}.*{problem}"):
        list(read_rollouts(path))


def test_a_record_with_a_bad_field_is_named(tmp_path: Path) -> None:
    for change in ({"outcome": "won"}, {"limits": {"max_turns": 0}}, {"turns": 3}, {"extra": 1}, {"opening": {}}):
        (tmp_path / "r.jsonl").write_text(json.dumps({**small().to_dict(), **change}) + "\n")
        with pytest.raises(DataError, match="line 1"):
            list(read_rollouts(tmp_path / "r.jsonl"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing.jsonl: No such file"):
        list(read_rollouts(tmp_path / "missing.jsonl"))
