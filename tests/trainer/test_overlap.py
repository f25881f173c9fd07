"""Rollouts of the next step that are sampled while the weights are updated."""

import asyncio
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from envhub.errors import UserError
from envhub.records import RolloutStore
from envhub.trainer.config import resolve
from envhub.trainer.metrics import read_metrics
from envhub.trainer.plan import engine_options, plan, trainer_threads
from envhub.trainer.progress import Progress
from envhub.trainer.run import train
from envhub.trainer.threads import Share, computing_with, share_out

VALUES = {
    "preset": "test", "env": "guess_number", "tensorboard": False, "eval_tasks": 0, "max_turns": 1, "overlap": True,
}  # fmt: skip


def run(output: Path, **values: object) -> str:
    said = Progress(Console(file=io.StringIO(), soft_wrap=True))
    config = resolve({**VALUES, "output": output, **values})
    asyncio.run(train(config, resume=output if output.exists() else None, progress=said))
    return said.console.file.getvalue()


def versions(output: Path) -> dict[int, set[int]]:
    """The weight versions of the tokens that each step learnt from."""
    found: dict[int, set[int]] = {}
    with RolloutStore(output / "rollouts.sqlite", read_only=True) as store:
        for step in range(1, 6):
            for rollout in store.iterate(phase="train", step=step):
                samples = rollout.trajectory.samples()
                found.setdefault(step, set()).update(v for sample in samples for v in sample.versions if v >= 0)
    return found


@pytest.mark.slow
def test_each_step_learns_from_the_weights_before_the_last_update_and_loses_nothing_over_a_stop(tmp_path: Path):
    run(tmp_path / "run", steps=3, save_every=1)
    # While step 1 is learnt from version 0, step 2 is sampled with it; step 3 with version 1; none of two versions.
    assert versions(tmp_path / "run") == {1: {0}, 2: {0}, 3: {1}}
    assert read_metrics(tmp_path / "run")[-1]["ledger"] == {
        "issued": 24, "used": 24, "in_flight": 0, "buffered": 0, "dropped": {}, "retried": {},
    }  # fmt: skip
    assert "going on after step 3" in run(tmp_path / "run", steps=5)
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[-1]["ledger"]["issued"] == rows[-1]["ledger"]["used"] == 40
    assert versions(tmp_path / "run") == {1: {0}, 2: {0}, 3: {1}, 4: {3}, 5: {3}}


@pytest.mark.slow
def test_what_was_collected_ahead_of_a_stop_is_sampled_again_and_counted(tmp_path: Path):
    with pytest.raises(RuntimeError, match="stop here"):
        run_until(tmp_path / "run", 2)
    run(tmp_path / "run", steps=3, save_every=1)
    ledger = read_metrics(tmp_path / "run")[-1]["ledger"]
    assert ledger["dropped"] == {"stopped": 8}
    assert ledger["issued"] == 32 and ledger["used"] == 24
    with RolloutStore(tmp_path / "run" / "rollouts.sqlite", read_only=True) as store:
        tasks = {step: {r.group for r in store.iterate(phase="train", step=step)} for step in (1, 2, 3)}
    assert len(set().union(*tasks.values())) == 6  # no task is passed over or taken twice


def run_until(output: Path, step: int) -> None:
    """Train with checkpoints until the line of a step, and fail there."""
    said = Progress(Console(file=io.StringIO(), soft_wrap=True))
    say = said.say

    def stop(text: str) -> None:
        say(text)
        if text.startswith(f"step {step}/"):
            raise RuntimeError("stop here")

    said.say = stop
    asyncio.run(train(resolve({**VALUES, "output": output, "steps": 3, "save_every": 1}), progress=said))


def test_an_algorithm_without_a_correction_is_refused():
    with pytest.raises(UserError, match="needs a correction"):
        plan(resolve({**VALUES, "correction": "none"}))


def test_cores_are_shared_out_only_where_both_compute_at_once():
    assert share_out(True, (0, 2, 3)) == Share((0,), (2, 3))
    assert share_out(True, (4,)) == Share((4,), (4,))
    assert share_out(False, (0, 1)) == Share((0, 1), (0, 1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is shared out")
def test_the_engine_gets_its_cores_and_the_trainer_the_others():
    config = resolve({**VALUES, "engine": "vllm"})
    share = share_out(True)
    assert engine_options(config)["threads"] == ",".join(map(str, share.engine))
    assert trainer_threads(config) == len(share.trainer)
    alone = resolve({**VALUES, "engine": "vllm", "overlap": False})
    assert "threads" not in engine_options(alone) and trainer_threads(alone) == len(share_out(False).trainer)
    given = resolve({**VALUES, "engine": "vllm", "engine_options": {"threads": "0"}})
    assert engine_options(given)["threads"] == "0" and trainer_threads(given) == len(share_out(False).trainer)


def test_threads_are_as_before_afterwards():
    before = torch.get_num_threads()
    with computing_with(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
