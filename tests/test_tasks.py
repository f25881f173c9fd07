from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhub import GeneratedTasks, ListTasks, Task
from envhub.errors import DataError, UserError
from envhub.tasks import column, hashed_seed, read_jsonl


def _sums(name: str = "sums") -> GeneratedTasks:
    return GeneratedTasks(name, lambda rng: Task(prompt=f"{rng.random()} + {rng.random()}"))


def test_the_same_address_gives_the_same_task() -> None:
    assert _sums().get("train", 5, 1) == _sums().get("train", 5, 1)


def test_neighbouring_seeds_splits_and_sets_share_no_items() -> None:
    prompts = [
        _sums(name).get(split, index, seed).prompt
        for name in ("sums", "sums2")
        for split in ("train", "eval")
        for seed in range(4)
        for index in range(50)
    ]
    assert len(set(prompts)) == len(prompts)


@given(st.text(), st.text(), st.integers(), st.integers())
def test_hashed_seeds_do_not_run_parts_together(a: str, b: str, x: int, y: int) -> None:
    assert 0 <= hashed_seed(a, x) < 2**63
    assert hashed_seed(x, 11) != hashed_seed(f"{x}1", 1)
    if (a, x) != (b, y):
        assert hashed_seed("s", a, x) != hashed_seed("s", b, y) or "\x1f" in a + b


def test_an_unknown_split_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no split 'trian'.*did you mean 'train'"):
        _sums().get("trian", 0)


def test_indices_outside_of_a_finite_split_are_errors() -> None:
    tasks = ListTasks("few", {"train": [Task("a")]})
    with pytest.raises(IndexError):
        tasks.get("train", 1)
    with pytest.raises(IndexError):
        tasks.get("train", -1)
    assert [task.prompt for task in tasks.iterate("train")] == ["a"]


def test_an_empty_task_set_is_refused() -> None:
    with pytest.raises(UserError, match="no tasks in split 'eval'"):
        ListTasks("none", {"train": [Task("a")], "eval": []})


@given(st.lists(st.text(min_size=1), min_size=2, max_size=40, unique=True), st.floats(0.05, 0.95))
def test_the_hash_split_is_a_partition_and_is_stable_under_order(prompts: list[str], fraction: float) -> None:
    tasks = [Task(prompt) for prompt in prompts]
    one = ListTasks.split_by_hash("s", tasks, eval_fraction=fraction)
    other = ListTasks.split_by_hash("s", tasks[::-1], eval_fraction=fraction)
    train, held_out = ({task.prompt for task in one.iterate(split)} for split in ("train", "eval"))
    assert train | held_out == set(prompts)
    assert not train & held_out
    assert train
    assert held_out
    assert {task.prompt for task in other.iterate("eval")} == held_out


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        (b'{"a": 1}\n\n[1]\n', "line 3: expected a JSON object, found list"),
        (b'{"a": "\xff"}\n', "line 1: not UTF-8"),
        (b"\n \n", "holds no rows"),
        (b"[" * 100_000, "line 1: nested more than 100 deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 1: a whole number of thousands of digits"),
        (b'{"a": 1}\n{"a": NaN}', "line 2: NaN is no JSON"),
        (b'{"a": 1}\n{"a": [-1e999]}', "line 2: a number beyond the range of floating point"),
        (b'{"a": 1}\n{"a": 1, "b": 2, "a": 3}', "line 2: an object with the key 'a' twice"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        read_jsonl(path)
    assert str(path) in str(caught.value)


def test_files_that_an_editor_has_saved_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \r\n{"a": "\xc2\x85 \xe2\x80\xa8"}')
    assert read_jsonl(path) == [(1, {"a": 1}), (4, {"a": "\x85 \u2028"})]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.jsonl: No such file"):
        read_jsonl(tmp_path / "none.jsonl")


def test_a_missing_column_is_named_with_line_and_nearest(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('\ufeff{"qestion": "x", "answer": 1}\n')
    ((line, row),) = read_jsonl(path)
    assert column(row, ["answer"], path=path, line=line) == 1
    with pytest.raises(DataError, match="line 1: no column 'question'; it has answer, qestion; did you mean 'qestion'"):
        column(row, ["question"], path=path, line=line)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rng: 1 / 0, r"index 3 of train \(its seed: \d+\) raised ZeroDivisionError.*test_tasks\.py:"),
        (lambda rng: [][3], "raised IndexError"),
        (lambda rng: "a prompt", "gave no Task but 'a prompt'"),
    ],
)
def test_a_task_that_cannot_be_made_is_named(make, message: str) -> None:
    with pytest.raises(
        UserError, match=f"task set 'sums': making the task at {message}" if "index 3" in message else message
    ):
        GeneratedTasks("sums", make).get("train", 3)


def test_all_tasks_can_be_held_out() -> None:
    made = ListTasks.split_by_hash("s", [Task(str(i)) for i in range(5)], eval_fraction=1)
    assert (made.splits, made.size("eval")) == (("eval",), 5)
    assert [task.prompt for task in made.iterate("eval")] == ["0", "1", "2", "3", "4"]
    with pytest.raises(UserError, match="above 0 and at most 1, not 1.5"):
        ListTasks.split_by_hash("s", [Task("x")], eval_fraction=1.5)
