"""Evaluations that are gone on with: what is on disk, and what is said about it."""

import json
import sqlite3
from pathlib import Path

import pytest

COMMON = ["eval", "guess_number", "--model", "scripted:random", "--output", "out", "--tasks", "6"]


@pytest.fixture
def out(cli, tmp_path: Path) -> Path:
    """The folder of a finished evaluation of six rollouts."""
    assert cli(*COMMON)[0] == 0
    return tmp_path / "out"


def rows(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "rollouts.sqlite") as database:
        return sorted(row[0] for row in database.execute("SELECT id FROM rollouts"))


def lines(folder: Path) -> list[str]:
    return sorted(json.loads(line)["id"] for line in (folder / "rollouts.jsonl").read_text().splitlines())


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("damage", ["missing rows", "other rows", "no database", "no database at all", "cut off"])
def test_the_database_holds_what_the_json_lines_hold(cli, out: Path, damage: str, as_json: bool) -> None:
    file, database = out / "rollouts.jsonl", out / "rollouts.sqlite"
    if damage == "missing rows":
        with sqlite3.connect(database) as opened:
            opened.execute("DELETE FROM rollouts WHERE number > 2")
    elif damage == "other rows":
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    elif damage == "no database":
        database.write_text("this is no database, and long enough to be told from one " * 20)
    elif damage == "no database at all":
        database.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-200])
    code, said, err = cli(*COMMON, *(["--json"] if as_json else []))
    assert code == 0, err
    assert len(lines(out)) == 6
    assert rows(out) == lines(out)
    assert "envhub: note: " in err and "rollouts.jsonl" in err
    if as_json:
        assert json.loads(said)["rollouts"] == 6


def test_nothing_is_noted_where_nothing_is_wrong(cli, out: Path) -> None:
    assert cli(*COMMON)[2] == ""


def test_a_line_that_a_kill_cut_off_is_run_again(cli, out: Path) -> None:
    file = out / "rollouts.jsonl"
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join(kept[:5]) + kept[5][:100])
    code, said, err = cli(*COMMON)
    assert code == 0 and "5 of 6 rollouts are there already" in said
    assert "rollouts.jsonl ended in half a line, which is dropped" in err
    assert len(set(lines(out))) == 6
    assert set(lines(out)) >= {json.loads(line)["id"] for line in kept[:5]}
