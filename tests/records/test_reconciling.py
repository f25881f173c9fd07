"""A store that is taken up again holds what the JSON lines hold, whatever it held before."""

import sqlite3
from pathlib import Path

import pytest

from envhub import Rollout
from envhub.errors import DataError, UserError
from envhub.records import RolloutStore, reconciled, taken_up

from .rollouts import small


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.sqlite"


def fill(path: Path, rollouts: list[Rollout], phase: str = "eval") -> None:
    with RolloutStore(path) as store:
        for rollout in rollouts:
            store.add(rollout, phase=phase)


def test_a_store_that_holds_the_same_is_left_as_it_is(place: Path) -> None:
    truth = [small(index) for index in range(3)]
    fill(place, truth)
    store, note = reconciled(place, truth, phase="eval")
    with store:
        assert (note, list(store.iterate())) == ("", truth)


def test_rows_that_are_missing_are_added_and_others_taken_out(place: Path) -> None:
    truth = [small(index) for index in range(3)]
    changed = small(1, "another answer", id=truth[1].id)
    fill(place, [truth[0], changed, small(7), small(8)])
    store, note = reconciled(place, truth, phase="eval")
    with store:
        assert list(store.iterate()) == truth
        assert store.count("eval") == 3
        assert note == "rollouts.sqlite did not hold what rollouts.jsonl holds: 1 added, 1 replaced, 2 removed"


def test_a_line_that_is_there_twice_is_one_row(place: Path) -> None:
    first, second = small(1, id="same"), small(2, id="same")
    store, _ = reconciled(place, [first, second], phase="eval")
    with store:
        assert list(store.iterate()) == [second]
    store, note = reconciled(place, [first, second], phase="eval")
    store.close()
    assert note == ""


@pytest.mark.parametrize("damage", ["text", "truncated", "pages", "other table", "missing", "empty"])
def test_a_damaged_or_missing_store_is_made_anew(place: Path, damage: str) -> None:
    truth = [small(index, "long " * 4000) for index in range(5)]
    fill(place, truth)
    data = place.read_bytes()
    if damage == "text":
        place.write_text("this is no database, and long enough to be told from one " * 20)
    elif damage == "truncated":
        place.write_bytes(data[: len(data) // 2])
    elif damage == "pages":
        place.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    elif damage == "other table":
        place.unlink()
        sqlite3.connect(place).execute("CREATE TABLE rollouts (id)").connection.close()
    elif damage == "empty":
        place.write_bytes(b"")
    else:
        place.unlink()
    store, note = reconciled(place, truth, phase="eval")
    with store:
        assert list(store.iterate()) == truth
    assert note.startswith("rollouts.sqlite ")
    assert "rollouts.jsonl" in note


def test_a_new_store_is_nothing_to_speak_of(place: Path) -> None:
    store, note = reconciled(place, [], phase="eval")
    with store:
        assert (note, store.count()) == ("", 0)


def test_a_folder_in_the_stores_place_is_named(place: Path) -> None:
    place.mkdir()
    with pytest.raises(UserError, match=f"{place}"):
        reconciled(place, [small()], phase="eval")


def damage(place: Path, how: str) -> None:
    data = place.read_bytes()
    if how == "text":
        place.write_text("this is no database, and long enough to be told from one " * 20)
    elif how == "truncated":
        place.write_bytes(data[: len(data) // 2])
    elif how == "pages":
        place.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    else:
        place.unlink()
        sqlite3.connect(place).execute("CREATE TABLE rollouts (id)").connection.close()


@pytest.mark.parametrize("how", ["text", "truncated", "pages", "other table"])
def test_rollouts_that_are_nowhere_else_are_not_replaced(place: Path, how: str) -> None:
    fill(place, [small(index, "long " * 4000) for index in range(5)], "train")
    damage(place, how)
    before = place.read_bytes()
    with pytest.raises(DataError, match=rf"{place} .*; move it away to go on without its rollouts"):
        taken_up(place)
    assert place.read_bytes() == before


def test_a_store_that_was_removed_is_begun_anew(place: Path) -> None:
    truth = [small(0), small(1)]
    fill(place, truth, "train")
    store, note = taken_up(place)
    with store:
        assert (note, list(store.iterate())) == ("", truth)
        place.unlink()  # and what a killed run leaves beside it stays
        kept = place.with_name("rollouts.sqlite-wal")
        kept.write_bytes(b"left")
        again, note = taken_up(place)
        with again:
            assert again.count() == 0
        assert note == "rollouts.sqlite was missing: a new one is begun, without the rollouts of earlier steps"


def test_a_store_in_use_is_not_called_damaged(place: Path) -> None:
    fill(place, [small()])
    with sqlite3.connect(place) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match="locked") as caught:
            taken_up(place)
    other.close()
    assert "move it away" not in str(caught.value)
