"""What tells that training goes wrong: stale weights, disagreement, updates that move nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from envhub.agents.engines.transformers_engine import TransformersEngine
from envhub.errors import EngineFault, UserError
from envhub.trainer.alarms import Canary, count_skipped, fingerprint, mismatch, refuse_unmoved
from envhub.trainer.algorithms import RLOO
from envhub.trainer.batch import build_rows
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy
from envhub.trainer.transfer import SameMemory

PROMPT = [5 + i for i in range(40)]
OPTIONS = Optimization(learning_rate=1e-2, precision="float32")


def exact_engine(model: Path) -> TransformersEngine:
    """In the trainer's precision, also on a machine that computes bfloat16 quickly."""
    return TransformersEngine(str(model), dtype="float32")


async def test_a_canary_tells_stale_weights_from_new_ones(tiny_path: Path, make_rollout):
    engine, strategy = exact_engine(tiny_path), TorchStrategy(tiny_path, OPTIONS, device="cpu")
    await engine.start()
    try:
        canary = Canary(engine, strategy, PROMPT, 0.8)
        assert await canary.check(0) < 1e-3
        rows = build_rows([make_rollout([(PROMPT, [8] * 8)], 1.0), make_rollout([(PROMPT, [9] * 8)], 0.0)], RLOO)
        for _ in range(3):
            strategy.step(rows, RLOO, 1.0, None, None)
        with pytest.raises(EngineFault, match=r"has not the weights of version 1: .* differ from the trainer's by"):
            await canary.check(1)
        await SameMemory().send(strategy, engine, 1)
        assert await canary.check(1) < 1e-3
    finally:
        await engine.close()


async def test_one_wrong_answer_is_counted_and_ends_no_run(tiny_path: Path):
    engine, strategy = exact_engine(tiny_path), TorchStrategy(tiny_path, OPTIONS, device="cpu")
    await engine.start()
    wrong = iter([0.0, 0.5, 0.5, 0.0, 0.5, 0.6, 0.7])
    try:
        canary = Canary(engine, strategy, PROMPT, 0.8)
        measure = canary.difference

        async def disturbed() -> float:
            return await measure() + next(wrong)

        canary.difference = disturbed
        await canary.check(0)
        assert await canary.check(1) < 1e-3
        assert canary.doubted == 2
        with pytest.raises(EngineFault, match=r"has not the weights of version 2: .* by 0\.5"):
            await canary.check(2)
    finally:
        await engine.close()


GOOD = {"mismatch_k3": 1e-4, "importance": 1.0, "max_mismatch": 0.1, "effective_sample_size": 0.99}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"importance": 0.7}, "top-p, top-k"),
        ({"importance": 1.5}, "wiring"),
        ({"mismatch_k3": 0.2}, "old weights"),
        ({"effective_sample_size": 0.2}, "old weights"),
        ({"max_mismatch": 9.0, "mismatch_k3": 0.01}, "chat template"),
    ],
)
def test_a_disagreement_is_named_with_its_likely_cause(changed: dict[str, float], said: str):
    found = mismatch({**GOOD, **changed})
    assert said in found and bool(found) == bool(said)


def test_a_step_without_an_update_has_nothing_to_disagree_about():
    assert mismatch({"reward": 1.0}) == ""


def test_an_update_that_moves_nothing_is_refused(tiny_path: Path, make_rollout):
    rows = build_rows([make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)], RLOO)
    still = TorchStrategy(tiny_path, replace(OPTIONS, learning_rate=1e-30), device="cpu")
    before = fingerprint(still)
    report = still.step(rows, RLOO, 1.0, None, None)
    with pytest.raises(UserError, match="moved no parameter, although its gradient"):
        refuse_unmoved(before, still, report.metrics["gradient_norm"])
    refuse_unmoved(before, still, 0.0)  # without a gradient nothing should move
    moving = TorchStrategy(tiny_path, OPTIONS, device="cpu")
    before = fingerprint(moving)
    moving.step(rows, RLOO, 1.0, None, None)
    refuse_unmoved(before, moving, 1.0)


def test_updates_that_are_not_finite_are_said_and_the_third_in_a_row_stops():
    said: list[str] = []
    assert count_skipped(1, 4, ["", "loss nan", ""], said.append, kept="skipped-step-4.jsonl") == 0
    assert said == ["step 4: the update was skipped: loss nan; its rollouts are in skipped-step-4.jsonl"]
    assert count_skipped(0, 5, ["loss nan", "loss inf"], said.append) == 2
    with pytest.raises(UserError, match=r"^3 updates in a row were not finite \(loss inf\); lower --learning-rate$"):
        count_skipped(2, 6, ["loss inf", ""], said.append)
    assert said[1:] == [
        f"step {step}: the update was skipped: loss {x}" for step, x in ((5, "nan"), (5, "inf"), (6, "inf"))
    ]
