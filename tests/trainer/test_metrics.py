"""The metrics file of a run: what a killed writer leaves is dropped, other damage is named."""

import json
from pathlib import Path

import pytest

from envhub.errors import DataError
from envhub.trainer.metrics import MetricsLog, forget_after, read_metrics

ROW = {"kind": "train", "reward": 0.5, "passed": 0.25}


def write(folder: Path, *lines: str | bytes) -> Path:
    file = folder / "metrics.jsonl"
    file.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines))
    return file


def row(step: object) -> str:
    return json.dumps({"step": step, **ROW})


def documented(*kinds: str) -> dict[str, list[str]]:
    """The numbers of rows of these kinds that the reference has, sorted."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    parts = dict(part.split("`", 2)[1:] for part in page.split("## Kind ")[1:])
    cells = {
        kind: [line.split("|")[1] for line in parts[kind].splitlines() if line.startswith("| `")] for kind in kinds
    }
    return {
        kind: sorted(name.strip(" `") for cell in found for name in cell.split(",")) for kind, found in cells.items()
    }


def numbers_of(run: Path, *kinds: str) -> dict[str, list[str]]:
    """The numbers that a run's rows of these kinds have, sorted."""
    rows = read_metrics(run)
    return {
        kind: sorted({name for row in rows if row["kind"] == kind for name in row} - {"step", "kind"}) for kind in kinds
    }


def test_what_is_written_is_read(tmp_path: Path):
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write(1, "train", {"reward": float("nan"), "passed": 0.5, "note": "café\u2028"})
    log.close()
    assert read_metrics(tmp_path) == [{"step": 1, "kind": "train", "reward": None, "passed": 0.5, "note": "café\u2028"}]


@pytest.mark.parametrize("left", [b"{", b'{"step": 2, "kind": "tr', b'{"step": 2', b"\xc3", b"\0\0\0"])
def test_a_line_that_a_killed_run_did_not_finish_is_dropped(tmp_path: Path, left: bytes):
    file = write(tmp_path, row(0), row(1), left)
    assert [item["step"] for item in read_metrics(tmp_path)] == [0, 1]
    assert forget_after(tmp_path, 0) == "metrics.jsonl: rows dropped: 1 of steps that are run again, 1 unfinished"
    assert file.read_text() == row(0) + "\n"


def test_a_last_row_that_lacks_but_its_newline_is_kept(tmp_path: Path):
    file = write(tmp_path, row(0), row(1).encode())
    assert [item["step"] for item in read_metrics(tmp_path)] == [0, 1]
    assert forget_after(tmp_path, 1) == ""
    MetricsLog(tmp_path, tensorboard=False).close()
    assert file.read_text() == f"{row(0)}\n{row(1)}\n"


@pytest.mark.parametrize(
    ("step", "said", "left"),
    [
        (3, "2 doubled", [0, 1, 2, 3]),
        (2, "1 of steps that are run again, 2 doubled", [0, 1, 2]),
        (1, "2 of steps that are run again, 2 doubled", [0, 1]),
        (-1, "6 of steps that are run again", []),
    ],
)
def test_what_a_resumed_run_drops_is_counted(tmp_path: Path, step: int, said: str, left: list[int]):
    write(tmp_path, row(0), row(1), row(1), row(1).replace("0.5", "0.75"), row(2), row(3))
    assert forget_after(tmp_path, step) == f"metrics.jsonl: rows dropped: {said}"
    rows = read_metrics(tmp_path)
    assert [item["step"] for item in rows] == left
    assert [item["reward"] for item in rows if item["step"] == 1] in ([], [0.75])
    assert forget_after(tmp_path, step) == ""


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ("[1, 2]", "an object"),
        ("3", "an object"),
        ("null", "an object"),
        (json.dumps(ROW), "step"),
        (row("2"), "step.*'2'"),
        (row(-1), "step.*-1"),
        (row(True), "step.*True"),
        (row(1.5), "step.*1.5"),
        (row(None), "step.*None"),
        (row(float("nan")), "NaN"),
        (row(2).replace("0.5", "Infinity"), "Infinity"),
        ('{"step": 2, "kind": "tr', "JSON"),
        (row(2).replace("{", '{"step": 1, '), "'step' twice"),
        ("[" * 100_000, "JSON"),
        ('{"step": ' + "9" * 5000 + "}", "JSON"),
        (json.dumps({"step": 2, "reward": 0.5, "passed": 0.5}), "kind"),
        (json.dumps({"step": 2, **ROW, "kind": []}), "kind"),
        (json.dumps({"step": 2, "kind": "train", "reward": "high", "passed": 0.5}), "reward.*'high'"),
        (json.dumps({"step": 2, "kind": "train", "reward": 0.5}), "passed"),
        (json.dumps({"step": 2, "kind": "eval", "reward": 0.5, "passed": 0.5}), "scored"),
        (b"\xff\xfe\n", "UTF-8"),
        (f'{{"step": 1{"0" * 400}, "kind": "sft", "nll": 1}}', "step is a number within"),
        (json.dumps({"step": 2, "kind": "sft", "nll": -1e200}), "nll is a number within"),
        (json.dumps({"step": 2, **ROW, "kind": "train", "loss": 10**400}), "loss is a number within"),
        (
            json.dumps({"step": 2, "kind": "eval", "scored": 4, "passed": 1, "reward": 0.5, "reward_low": 0.9}),
            "reward 0.5 is not",
        ),
        (
            json.dumps({"step": 2, "kind": "eval", "scored": 4, "passed": 1, "reward": 0, "passed_high": 0.9}),
            "passed 1 is not",
        ),
    ],
)
def test_other_damage_is_named_with_file_and_line(tmp_path: Path, damaged: str | bytes, said: str):
    file = write(tmp_path, row(1), damaged, row(3))
    before = file.read_bytes()
    with pytest.raises(DataError, match=rf"metrics.jsonl, line 2: (?s:.*){said}"):
        read_metrics(tmp_path)
    with pytest.raises(DataError, match="metrics.jsonl, line 2"):
        forget_after(tmp_path, 1)
    assert file.read_bytes() == before


def test_a_damaged_last_line_that_was_finished_is_named_too(tmp_path: Path):
    write(tmp_path, row(1), "{")
    with pytest.raises(DataError, match="line 2"):
        read_metrics(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="is no training run: it has no metrics.jsonl"):
        read_metrics(tmp_path)
    with pytest.raises(DataError, match="nowhere is no training run: there is no such folder"):
        read_metrics(tmp_path / "nowhere")
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(DataError, match="cannot read .*metrics.jsonl"):
        read_metrics(tmp_path)


def test_a_missing_file_has_no_rows_to_forget(tmp_path: Path):
    assert forget_after(tmp_path, 0) == ""
