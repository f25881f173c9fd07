"""Curves of runs, by function and by command."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from envhub.cli.app import run
from envhub.errors import UserError
from envhub.trainer.plotting import numbers, plot, smoothed

PNG = b"\x89PNG"


def rows(offset: float = 0.0) -> list[dict]:
    train = [
        {"step": step, "kind": "train", "reward": None if step == 2 else offset + step / 10, "passed": 0.5, "kl": 0.1}
        for step in range(1, 6)
    ]
    held = [{"step": 0, "kind": "eval", "reward": offset, "reward_low": offset - 0.1, "passed": 0.1, "scored": 4}]
    return [*held, *train]


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    out = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
        out.append(tmp_path / name)
    return out


def texts(path: Path) -> set[str]:
    """The texts of an SVG picture, which matplotlib writes as comments beside their outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    return {item.text.strip() for item in ElementTree.parse(path, parser).iter() if "Comment" in repr(item.tag)}


def test_one_run_is_drawn_into_its_folder(two_runs: list[Path], capsys: pytest.CaptureFixture[str]):
    assert run(["plot", str(two_runs[0])]) == 0
    assert capsys.readouterr().out.strip() == str(two_runs[0] / "curve.png")
    assert (two_runs[0] / "curve.png").read_bytes().startswith(PNG)


def test_runs_are_told_apart_and_metrics_chosen(two_runs: list[Path], tmp_path: Path):
    picture = tmp_path / "new" / "both.svg"
    assert run(["plot", *map(str, two_runs), "-m", "kl", "-m", "reward", "--output", str(picture)]) == 0
    shown = texts(picture)
    assert {*map(str, two_runs), f"{two_runs[0]}: held out", "kl", "mean reward", "training step"} <= shown
    assert "share passed" not in shown


def test_the_metrics_of_runs_are_listed(two_runs: list[Path], capsys: pytest.CaptureFixture[str]):
    assert run(["plot", "--list", str(two_runs[0])]) == 0
    assert capsys.readouterr().out.split() == ["reward", "reward_low", "passed", "scored", "kl"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{0}", "-m", "rewrad"], "no run has the metric 'rewrad'; there are reward, .*; did you mean 'reward'?"),
        (["{0}", "{0}"], "is given twice"),
        (["{0}/nowhere"], "nowhere is no training run: there is no such folder"),
        (["{0}", "--output", "{0}/curve.docx"], "cannot draw .*curve.docx"),
        (["{0}", "--output", "{0}/curve"], "curve names no picture; write for example .*/curve.png"),
        (["{0}", "--output", "{0}"], "names no picture; write for example .*/curve.png"),
        (["{0}", "--output", "{0}/metrics.jsonl/x.png"], "cannot draw .*x.png"),
        ([], "(?i)missing argument"),
    ],
)
def test_mistakes_are_named(two_runs: list[Path], capsys: pytest.CaptureFixture[str], arguments: list[str], said: str):
    import re

    assert run(["plot", *(text.format(*two_runs) for text in arguments)]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error) and len(error.splitlines()) == 1


def test_a_run_without_rows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "metrics.jsonl").write_text("")
    assert run(["plot", str(tmp_path)]) == 2
    assert "no metrics yet" in capsys.readouterr().err


def test_names_that_look_like_a_formula_are_shown_as_they_are(tmp_path: Path):
    made = [{**row, "env": env} for env in ("$x^$", "b") for row in rows() if row["kind"] == "eval"]
    made += [{"step": 1, "kind": "train", "reward": 1.0, "passed": 1.0, "$y_$": 2.0}]
    for name in ("one $x_^$", "two $"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    picture = tmp_path / "x.svg"
    assert run(["plot", str(tmp_path / "one $x_^$"), "-m", "$y_$", "-m", "reward", "--output", str(picture)]) == 0
    assert {str(tmp_path / "one $x_^$"), "$y $", "held-out tasks (95 %), $x^$"} <= texts(picture)
    assert run(["plot", *(str(tmp_path / name) for name in ("one $x_^$", "two $")), "--output", str(picture)]) == 0
    assert f"{tmp_path / 'two $'}: held out, $x^$" in texts(picture)


def test_what_is_no_number_in_one_row_is_a_gap(tmp_path: Path):
    made = [{**row, "kl": "?"} if row["step"] == 3 else row for row in rows()]
    plot({"a": made}, tmp_path / "x.png", shown=["kl"])
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)


def test_a_step_without_a_value_keeps_the_smoothed_one():
    assert smoothed([1.0, None, 0.0], weight=0.5) == [1.0, 1.0, 0.5]
    assert numbers(rows())[0] == "reward"


def test_a_metric_is_drawn_for_the_runs_that_have_it(tmp_path: Path):
    with_kl, without = rows(), [{k: v for k, v in row.items() if k != "kl"} for row in rows()]
    plot({"a": with_kl, "b": without}, tmp_path / "x.png", shown=["kl"])
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)
    with pytest.raises(UserError, match="no run has the metric 'loss'"):
        plot({"a": with_kl}, tmp_path / "y.png", shown=["loss"])
