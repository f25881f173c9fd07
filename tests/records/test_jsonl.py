import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from envhub.errors import DataError, UserError
from envhub.records import JsonlWriter, read_rollouts, write_rollouts

from .rollouts import small

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ"}}
SEGMENT = {"parent": None, "origin": "sampled", "token_ids": [1], "turn": 0, "logprobs": [-1.0], "versions": [0]}


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
        (b'{"a": 1}\n 3', b'{"a": 1}\n'),
        (b'{"a": 1}\n\0\0\0', b'{"a": 1}\n'),
    ],
)
def test_a_last_line_that_was_left_unfinished_is_cut_off(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(before)
    with JsonlWriter(path) as writer:
        assert writer.cut == (before != after)
        writer.write({"c": 2})
    assert path.read_bytes() == after + b'{"c": 2}\n'


@pytest.mark.parametrize(
    "last", [b'{"a": 1}', b'{"a": 1}  ', b'{"a": "' + b"x" * 200_000 + b'"}', b'{"a": NaN}', b'{"a": 1, "a": 2}']
)
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b'{"b": "\xc3\xa9"}\n'])
def test_a_last_line_that_lacks_but_its_newline_is_kept(tmp_path: Path, before: bytes, last: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(before + last)
    with JsonlWriter(path) as writer:
        assert not writer.cut
        writer.write({"c": 2})
    assert path.read_bytes() == before + last + b'\n{"c": 2}\n'


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
def test_what_holds_itself_or_is_too_deep_is_cut(tmp_path: Path, key: object) -> None:
    ring: dict = {"kept": 1}
    ring[key] = ring
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    with JsonlWriter(tmp_path / "r.jsonl") as writer:
        writer.write({"info": ring, "deep": deep})
    read = json.loads((tmp_path / "r.jsonl").read_text())
    assert read["info"] == {"kept": 1, str(key): "<dict: holds itself>"}
    assert "<list: nested more than 64 deep>" in json.dumps(read["deep"])


def test_numbers_that_json_does_not_have_become_text(tmp_path: Path) -> None:
    class Mute:
        def __str__(self) -> str:
            raise KeyError("no")

    with JsonlWriter(tmp_path / "r.jsonl") as writer:
        writer.write({"info": [math.nan, -math.inf, 1.5, 10**5000, Mute()]})
    assert json.loads((tmp_path / "r.jsonl").read_text())["info"] == [
        "NaN",
        "-Infinity",
        1.5,
        "<int: of 16610 bits>",
        "<Mute: its text fails with KeyError>",
    ]


def test_what_raises_when_it_is_looked_at_is_named(tmp_path: Path) -> None:
    class Ghost(dict):
        def items(self):
            raise SystemExit("boo")

    with JsonlWriter(tmp_path / "r.jsonl") as writer:
        writer.write({"info": {"ghost": Ghost(a=1), "kept": 1}})
    read = json.loads((tmp_path / "r.jsonl").read_text())["info"]
    assert read == {"ghost": "<cannot be looked at: SystemExit: boo>", "kept": 1}


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
        (b"{", "line 3: no rollout record"),
        (b"[]", r"line 3: no rollout record: expected an object, found \[\]"),
        (b"3", "line 3: no rollout record"),
        (b"null", "line 3: no rollout record"),
        (b'{"id": "x"}', "line 3: no rollout record: environment: is missing"),
        (b'{"version": 99}', "line 3: no rollout record: a rollout record of version 99"),
        (b'{"version": "1"}', "line 3: no rollout record"),
        (b'{"environment": "\xff"}', "line 3: not UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, "line 3: no rollout record: nested more than 100 deep"),
        (b'{"id": ' + b"9" * 5000 + b"}", "line 3: no rollout record: a whole number of thousands of digits"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "r.jsonl"
    write_rollouts(path, [small()])
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=f"{path}, {problem}"):
        list(read_rollouts(path))


def test_files_that_an_editor_has_saved_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [json.dumps(small(index, id=str(index)).to_dict()) for index in range(2)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join([*lines, "   ", ""]).encode())
    assert [item.id for item in read_rollouts(path)] == ["0", "1"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": 3}, "id: expected a text, found 3"),
        ({"environment": None}, "environment: expected a text, found None"),
        ({"reward": "1"}, "reward: expected a number, found '1'"),
        ({"reward": True}, "reward: expected a number, found True"),
        ({"reward": math.nan}, "NaN is no JSON"),
        ({"reward": -math.inf}, "-Infinity is no JSON"),
        ({"reward": 10**400}, "reward: expected a finite number, found 1000"),
        ({"components": {"exact": 10**400}}, "components.exact: expected a finite number"),
        ({"components": [1]}, "components: expected an object"),
        ({"member": 1.5}, "member: expected a whole number"),
        ({"member": -1}, "member: expected a whole number from 0"),
        ({"seconds": None}, "seconds: expected a number"),
        ({"outcome": "won"}, "outcome: expected one of finished, .*, found 'won'"),
        ({"outcome": ["finished"]}, "outcome: expected one of"),
        ({"limits": {"max_turns": 0}}, "limits.max_turns: .*greater than or equal to 1, found 0"),
        ({"limits": {"max_truns": 1}}, "limits.max_truns: "),
        ({"limits": {"max_turns": "3"}}, "limits.max_turns: expected a number"),
        ({"limits": 3}, "limits: expected an object"),
        ({"turns": 3}, "turns: expected a list"),
        ({"turns": [3]}, r"turns\[0\]: expected an object"),
        ({"turns": [{"action": {"text": 3}, "observation": None}]}, r"turns\[0\].action.text: expected a text"),
        ({"turns": [{"action": {"text": ""}}]}, r"turns\[0\].observation: is missing"),
        ({"turns": [{"action": {"text": ""}, "observation": None, "terminated": 1}]}, "terminated: expected true or false"),
        ({"turns": [{"action": {"text": ""}, "observation": None, "reward": 10**400}]}, "reward: expected a finite"),
        ({"turns": [{"action": {"text": ""}, "observation": None, "rewrad": 1}]}, "rewrad: is no field"),
        ({"task": {"prompt": 3}}, "task.prompt: expected a list"),
        ({"task": {"prompt": [{"role": "robot"}]}}, r"task.prompt\[0\].role: expected one of system, user"),
        ({"task": {"prompt": [{"role": "user", "content": [{"type": "text"}]}]}}, r"content\[0\].text: is missing"),
        ({"task": {"prompt": "", "index": "0"}}, "task.index: expected a whole number"),
        ({"task": {}}, "task.prompt: is missing"),
        ({"extra": 1}, "extra: is no field"),
        ({"\ud800": 1}, r"expected a text without lone surrogates, found '\\ud800'"),
        ({"opening": {}}, "opening.messages: is missing"),
        ({"opening": {"messages": [{"role": "user", "content": [IMAGE]}]}}, "opening: Incorrect padding"),
        ({"trajectory": {"segments": [SEGMENT | {"token_ids": ["a"]}], "forks": []}}, r"segments\[0\].token_ids\[0\]"),
        ({"trajectory": {"segments": [SEGMENT | {"logprobs": [-(10**400)]}], "forks": []}}, r"logprobs\[0\]: .*finite"),
        ({"trajectory": {"segments": [SEGMENT | {"logprobs": []}], "forks": []}}, "trajectory: segment 0 has uneven"),
        ({"trajectory": {"segments": [SEGMENT | {"parent": 7}], "forks": []}}, "trajectory: no segment 7"),
        ({"trajectory": {"segments": [SEGMENT | {"origin": "won"}], "forks": []}}, "origin: expected one of"),
    ],
)  # fmt: skip
def test_a_record_with_a_bad_field_is_named(tmp_path: Path, change: dict, problem: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({**small().to_dict(), **change}) + "\n")
    with pytest.raises(DataError, match=f"{path}, line 1: no rollout record: .*{problem}"):
        list(read_rollouts(path))


@pytest.mark.parametrize("field", small().to_dict())
@pytest.mark.parametrize("value", [None, True, 1, -1.5, math.nan, "text", [], [[1]], {}, {"a": {"b": None}}])
def test_no_value_of_any_field_is_more_than_a_data_error(tmp_path: Path, field: str, value: object) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps({**small().to_dict(), field: value}) + "\n")
    with contextlib.suppress(DataError):
        (made,) = read_rollouts(tmp_path / "r.jsonl")
        assert made.to_dict()[field] == value or field in ("limits", "version")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing.jsonl: No such file"):
        list(read_rollouts(tmp_path / "missing.jsonl"))
