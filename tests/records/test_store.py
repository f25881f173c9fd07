import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from envhub import Outcome
from envhub.errors import DataError, UserError
from envhub.records import RolloutStore

from .rollouts import small


@pytest.fixture
def store(tmp_path: Path):
    with RolloutStore(tmp_path / "run" / "rollouts.sqlite") as made:
        yield made


def test_rollouts_are_counted_and_listed_by_phase_and_step(store: RolloutStore) -> None:
    for index, (phase, step) in enumerate([("train", 1), ("eval", 1), ("train", 2), ("train", 3), ("eval", None)]):
        store.add(small(index), phase=phase, step=step)

    def listed(**where) -> list[int]:
        return [item.task.index for item in store.iterate(**where)]

    assert listed() == [0, 1, 2, 3, 4]
    assert listed(phase="train") == [0, 2, 3]
    assert listed(step=1) == [0, 1]
    assert listed(phase="train", step=2) == [2]
    assert listed(phase="other") == []
    assert (store.count(), store.count("train"), store.count("other")) == (5, 3, 0)
    assert store.drop_after("train", 0, keep=2) == 1
    assert listed(phase="train") == [0, 2]
    assert store.drop_after("train", 1) == 1
    assert listed() == [0, 1, 4]


def test_the_columns_say_what_the_record_says(store: RolloutStore) -> None:
    made = small(3, member=2, attempt=1, fault="environment", group="g", seconds=1.5)
    made.outcome = Outcome.ENVIRONMENT_FAULT
    store.add(made, phase="train", step=7)
    row = sqlite3.connect(store.path).execute(
        'SELECT id, phase, step, environment, task, "group", member, attempt, outcome, fault, reward, turns, '
        "action_tokens, seconds FROM rollouts"
    )
    assert row.fetchall() == [
        (made.id, "train", 7, "probe", "t/3", "g", 2, 1, "environment_fault", "environment", 1.0, 1, 3, 1.5)
    ]


def test_one_with_the_same_id_is_replaced(store: RolloutStore) -> None:
    store.add(small(0, id="same"))
    store.add(small(1, id="same"))
    assert (store.count(), store.get("same").task.index) == (1, 1)


def test_an_id_may_be_shortened(store: RolloutStore) -> None:
    for index, id in enumerate(["abc123", "abd456", "abd4567", "x_y"]):
        store.add(small(index, id=id))
    assert store.get("abc").id == "abc123"
    assert store.get("abd456").id == "abd456"
    with pytest.raises(UserError, match="3 rollouts in .* begin with 'ab'; give more of the id"):
        store.get("ab")
    with pytest.raises(UserError, match="no rollout 'abc132' in .*, which holds 4; did you mean 'abc123'"):
        store.get("abc132")
    for pattern in ("%", "_", "a%3", "x%", "ABC"):
        with pytest.raises(UserError, match="no rollout"):
            store.get(pattern)


def test_what_has_no_json_form_does_not_stop_a_run(store: RolloutStore) -> None:
    made = small(info={(1, 2): {3}, "surrogate": "\udcff"})
    store.add(made)
    assert store.get(made.id).info == {"(1, 2)": "{3}", "surrogate": "\udcff"}


def test_readers_in_other_processes_see_each_addition_at_once(store: RolloutStore) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom envhub.records import RolloutStore\n"
        "with RolloutStore(Path(sys.argv[1]), read_only=True) as store:\n"
        "    for line in sys.stdin:\n        print(store.count(), flush=True)"
    )
    command = [sys.executable, "-c", code, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        for count in range(1, 4):
            store.add(small(count))
            print("how many?", file=reader.stdin, flush=True)
            assert reader.stdout.readline() == f"{count}\n"
        reader.stdin.close()
        assert reader.wait(60) == 0


def test_a_store_is_taken_up_again(store: RolloutStore) -> None:
    store.add(small(0))
    store.close()
    with RolloutStore(store.path) as again:
        again.add(small(1))
        assert [item.task.index for item in again.iterate()] == [0, 1]


def test_a_read_only_store_is_not_written(store: RolloutStore) -> None:
    store.add(small())
    with RolloutStore(store.path, read_only=True) as reader:
        assert reader.count() == 1
        with pytest.raises(UserError, match="cannot write .*rollouts.sqlite"):
            reader.add(small())


@pytest.mark.parametrize("name", ["what?.sqlite", "100%41.sqlite", "a#b.sqlite", "ä ö.sqlite"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    with RolloutStore(tmp_path / name) as store:
        store.add(small())
    with RolloutStore(tmp_path / name, read_only=True) as reader:
        assert reader.count() == 1


def test_files_that_are_no_store_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and long enough to be told from one " * 20)
    with pytest.raises(DataError, match="text is no rollout database"):
        RolloutStore(tmp_path / "text")
    with pytest.raises(DataError, match="there is no such file"):
        RolloutStore(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE things (id)").connection.close()
    with pytest.raises(DataError, match="other is no rollout database"):
        RolloutStore(tmp_path / "other", read_only=True)
    sqlite3.connect(tmp_path / "clash").execute("CREATE TABLE rollouts (id)").connection.close()
    with pytest.raises(DataError, match="clash is no rollout database"):
        RolloutStore(tmp_path / "clash")
    with pytest.raises(UserError, match="cannot write .*text/below"):
        RolloutStore(tmp_path / "text" / "below" / "r.sqlite")
    with pytest.raises(DataError):
        RolloutStore(tmp_path)


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.sqlite"
    with RolloutStore(path) as store:
        for index in range(5):
            store.add(small(index, "long " * 4000, id=f"id{index}"))
    data = path.read_bytes()
    path.write_bytes(data[:16384] + b"\xff" * (len(data) - 16384))
    uses = (lambda store: list(store.iterate()), lambda store: store.get("id4"), lambda store: store.records())
    for use in uses:
        with pytest.raises(DataError, match="rollouts.sqlite is "), RolloutStore(path, read_only=True) as store:
            use(store)


def test_a_damaged_record_is_named(store: RolloutStore) -> None:
    store.add(small(id="broken"))
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE rollouts SET record = '{}'")
    for read in (lambda: store.get("broken"), lambda: list(store.iterate())):
        with pytest.raises(DataError, match="rollouts.sqlite, rollout 'broken': no rollout record"):
            read()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_cannot_be_opened_is_closed_again(
    tmp_path: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **how: opened.append(connect(*given, **how)) or opened[0])
    (tmp_path / "r.sqlite").write_text("this is no database, and long enough to be told from one " * 20)
    with pytest.raises(DataError, match="r.sqlite is no rollout database"):
        RolloutStore(tmp_path / "r.sqlite", read_only=read_only)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
