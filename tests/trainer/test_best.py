"""The best checkpoint: which it is, that it stays, and that a stop changes nothing about it."""

import asyncio
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from envhub.agents.engines import checkpoints
from envhub.agents.models import resolve_model
from envhub.cli.app import run as command_line
from envhub.errors import UserError
from envhub.ledger import Ledger
from envhub.trainer import best, checkpoint
from envhub.trainer.config import resolve
from envhub.trainer.metrics import read_metrics
from envhub.trainer.progress import Progress
from envhub.trainer.run import train

VALUES = {
    "preset": "test", "env": "guess_number", "tensorboard": False, "eval_tasks": 1, "eval_every": 1, "max_turns": 1,
    "max_turn_tokens": 4, "keep": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "every", "tasks", "metric"),
    [
        ("auto", 0, 4, ""),
        ("auto", 2, 0, ""),
        ("auto", 2, 4, "reward"),
        ("none", 2, 4, ""),
        ("passed", 0, 4, "passed"),
        ("reward_low", 2, 4, "reward_low"),
    ],
)
def test_what_the_setting_means(setting: str, every: int, tasks: int, metric: str):
    assert best.metric_of(setting, every, tasks) == metric


def test_a_metric_that_is_none_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    flags = ["train", "--env", "guess_number", "--preset", "test", "--output", str(tmp_path / "run"), "--dry-run"]
    assert command_line([*flags, "--best", "rewrd"]) == 2
    said = capfd.readouterr().err
    assert "no metric 'rewrd'" in said and "reward, reward_low, passed, passed_low" in said
    assert "did you mean 'reward'?" in said
    with pytest.raises(UserError, match="set eval_tasks above 0"):
        best.metric_of("passed", 0, 0)


def row(step: int, reward: float | None, **more: Any) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "reward": reward, **more}


def test_values_are_means_over_environments_of_the_last_rows():
    one = [row(1, 0.5), {"kind": "train", "step": 1, "reward": 9.0}, row(2, 0.1), row(2, 0.25), row(3, None)]
    assert best.values(one, "reward") == {1: 0.5, 2: 0.25}
    two = [
        row(4, 0.0, env="a"), row(4, 1.0, env="b"), row(5, 0.5, env="a"), row(5, None, env="b"), row(6, 1.0, env="a"),
    ]  # fmt: skip
    assert best.values(two, "reward") == {4: 0.5}


@given(st.dictionaries(st.integers(1, 9), st.floats(0, 1)), st.sets(st.integers(1, 9)))
def test_the_earliest_of_the_best_is_chosen(values: dict[int, float], steps: set[int]):
    chosen = best.choose(values, steps)
    known = {step: values[step] for step in steps if step in values}
    if chosen is None:
        assert not known
    else:
        assert all(
            value < known[chosen] or (value == known[chosen] and step >= chosen) for step, value in known.items()
        )


class _Model:
    def save_model(self, folder: Path) -> None:
        folder.mkdir()

    def save_pretrained(self, folder: Path) -> None:
        (folder / "config.json").write_text("{}")

    def state(self) -> dict[str, Any]:
        return {}

    def trained(self) -> str:
        return ""


def save(folder: Path, step: int, keep: int = 1) -> checkpoint.Checkpoint:
    model: Any = _Model()
    place = checkpoint.Place(position=0, seed=0)
    meta = checkpoint.Meta(step=step, sampler=place, ledger=Ledger().to_dict(), version=0)
    return checkpoint.save(folder, model, model, meta, keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_best_checkpoint_stays_until_there_is_a_better_one(tmp_path: Path):
    checkpoint.point_to_best(save(tmp_path, 1))
    save(tmp_path, 2)
    third = save(tmp_path, 3)
    assert names(tmp_path) == ["best", "step-000001", "step-000003"]
    assert checkpoints.best(tmp_path) == tmp_path / "step-000001"
    assert json.loads((tmp_path / "best" / checkpoints.META).read_text())["step"] == 1
    checkpoint.point_to_best(third)
    checkpoint.rotate(tmp_path, 1)
    assert names(tmp_path) == ["best", "step-000003"]


def test_a_copy_of_a_run_that_followed_the_link_goes_on(tmp_path: Path):
    checkpoint.point_to_best(save(tmp_path / "a", 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b" / "best").is_symlink()
    checkpoint.point_to_best(save(tmp_path / "b", 2))
    assert (tmp_path / "b" / "best").readlink() == Path("step-000002")
    assert names(tmp_path / "b") == ["best", "step-000002"]


def run(output: Path, resume: Path | None = None, **values: Any) -> str:
    said = Progress(Console(file=io.StringIO(), soft_wrap=True))
    asyncio.run(train(resolve({**VALUES, "output": output, **values}), resume=resume, progress=said))
    return said.console.file.getvalue()


@pytest.mark.slow
def test_a_run_that_was_stopped_chooses_as_one_that_was_not(tmp_path: Path):
    whole, stopped, exact = tmp_path / "whole", tmp_path / "stopped", {"engine_options": {"gather_seconds": 0.05}}
    said = run(whole, steps=4, **exact)
    rows = [item for item in read_metrics(whole) if item["kind"] == "eval" and item["step"]]
    chosen = max(rows, key=lambda item: (item["reward"], -item["step"]))
    place = whole / "checkpoints" / "best"
    last = [line for line in said.splitlines() if line.startswith("checkpoint: ")][-1]
    assert last.endswith(f"best: {place} (reward {chosen['reward']:.3f} after step {chosen['step']})")
    assert resolve_model(str(place)).path == (whole / "checkpoints" / f"step-{chosen['step']:06d}" / "model").resolve()

    run(stopped, steps=2, **exact)
    for item in checkpoint.finished(stopped / "checkpoints"):  # as if it had been killed before the last evaluation
        assert item.step <= 2
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join(lines[:-1]))
    run(stopped, resume=stopped, steps=4, **exact)
    found = [
        [(item["step"], item["reward"]) for item in read_metrics(folder) if item["kind"] == "eval"]
        for folder in (whole, stopped)
    ]
    assert found[0] == found[1]
    assert (stopped / "checkpoints" / "best").readlink() == place.readlink()
    assert names(stopped / "checkpoints") == names(whole / "checkpoints")
