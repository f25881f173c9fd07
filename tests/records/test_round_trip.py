"""What is written can be read, and reading and writing it again changes nothing: JSON lines and SQLite rows alike."""

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from envhub import Rollout
from envhub.errors import DataError
from envhub.records import RolloutStore, read_rollouts, write_rollouts

from .rollouts import ODD, rollouts, small

fast = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def through_lines(folder: Path, made: Rollout) -> tuple[Rollout, bytes]:
    file = folder / "r.jsonl"
    write_rollouts(file, [made])
    (back,) = read_rollouts(file)
    return back, file.read_bytes()


@fast
@given(made=rollouts())
def test_a_rollout_comes_back_as_it_was(made: Rollout, tmp_path: Path) -> None:
    back, line = through_lines(tmp_path, made)
    assert back == made
    assert line.count(b"\n") == 1
    assert through_lines(tmp_path, back)[1] == line


@fast
@given(made=rollouts(infos=ODD.map(lambda value: {"odd": value})))
def test_what_has_no_json_form_is_changed_once_and_never_again(made: Rollout, tmp_path: Path) -> None:
    back, line = through_lines(tmp_path, made)
    again, second = through_lines(tmp_path, back)
    assert (again, second) == (back, line)
    assert back.info.keys() == {"odd"}
    back.info = made.info
    assert back == made or "\ud83d" in repr(made)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    with RolloutStore(tmp_path_factory.mktemp("store") / "rollouts.sqlite") as made:
        yield made


@fast
@given(made=rollouts(infos=ODD.map(lambda value: {"odd": value})))
def test_a_row_holds_the_text_of_the_line(made: Rollout, store: RolloutStore, tmp_path: Path) -> None:
    back, line = through_lines(tmp_path, made)
    store.replace_all([made], phase="eval")
    assert list(store.records().values()) == [line.decode().rstrip("\n")]
    assert list(store.iterate()) == [store.get(made.id)] == [back]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_written_as_text_and_refused(
    value: float, store: RolloutStore, tmp_path: Path
) -> None:
    made = small(info={"note": [value]})
    made.reward = value
    name = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    write_rollouts(tmp_path / "r.jsonl", [made])
    assert f'"reward": "{name}"' in (tmp_path / "r.jsonl").read_text()
    assert f'"note": ["{name}"]' in (tmp_path / "r.jsonl").read_text()
    with pytest.raises(DataError, match=f"line 1: no rollout record: reward: expected a number, found '{name}'"):
        list(read_rollouts(tmp_path / "r.jsonl"))
    store.replace_all([made], phase="eval")
    with pytest.raises(DataError, match=f"rollout '{made.id}': no rollout record: reward: expected a number"):
        store.get(made.id)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"reward": NaN', "NaN is no JSON"),
        ('"reward": 1e999', "a number beyond the range of floating point"),
        ('"reward": 1.0, "reward": 0.0', "an object with the key 'reward' twice"),
    ],
)
def test_what_two_readers_would_read_differently_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    write_rollouts(file, [small(), small()])
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1].replace('"reward": 1.0', text, 1)]))
    with pytest.raises(DataError, match=f"line 2: no rollout record: {problem}"):
        list(read_rollouts(file))


def test_keys_of_one_text_are_kept_apart(tmp_path: Path) -> None:
    back, _ = through_lines(tmp_path, small(info={2: "number", "2": "text", None: "none", "\ud83d\ude00": 1, "😀": 2}))
    assert back.info == {"2": "number", "2'": "text", "None": "none", "😀": 1, "😀'": 2}
