"""The same rollouts and rewards change the parameters as TRL's own GRPOTrainer changes them, on policy and after it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from benchmarks.trl_side import replaying_trainer
from envhub.trainer import advantages
from envhub.trainer.algorithms import Algorithm, get_algorithm
from envhub.trainer.batch import build_rows
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy

TEMPERATURE, LONGEST = 0.8, 32


@dataclass(frozen=True)
class Case:
    """An algorithm of ours with what is set to meet TRL, and TRL's options for it."""

    algo: str
    theirs: dict[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)
    kl: bool = False
    rate: float = 0.1  # of SGD: Adam's first step hides a gradient's scale

    def sgd(self, parameters: Any) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=self.rate)

    def algorithm(self) -> Algorithm:
        found = get_algorithm(self.algo).with_options(correction="none", **self.ours)
        if self.theirs.get("scale_rewards") != "none":
            found = found.with_options(estimator=lambda rewards, groups, _: advantages.grpo(rewards, groups, 1e-4))
        return found


CASES = {
    "grpo": Case("grpo", {"loss_type": "grpo"}),
    "grpo with a KL": Case(
        "grpo",
        {"loss_type": "grpo", "beta": 0.5, "use_bias_correction_kl": False},
        {"kl_coef": 0.5},
        kl=True,
        rate=0.03,
    ),
    "dr_grpo": Case("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}, {"length": LONGEST}),
    "dapo": Case("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}),
    "gspo": Case(
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        rate=0.003,
    ),
}


@pytest.fixture
def rollouts(make_rollout):
    """Three groups of four: prompts and answers of different lengths, some of two turns; one group of equal rewards."""
    long = list(range(20, 50))
    out = [make_rollout([(long, [5 + i] * (2 * i + 1))], [0.0, 1.0, 0.25, 0.5][i], "a") for i in range(4)]
    out += [make_rollout([(long[:9], [9, 8 + i]), ([3, 4], [7] * (i + 1))], float(i == 2), "b") for i in range(4)]
    return [*out, *(make_rollout([([3, 4], [5, 6, i])], 1.0, "c") for i in range(4))]


class Snapshots(TrainerCallback):
    """The parameters after each optimizer step of TRL's."""

    def __init__(self) -> None:
        self.taken: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, args, state, control, model=None, **_):
        self.taken.append(copy_of(model))


def copy_of(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def by_trl(path: Path, rollouts, case: Case, output: Path) -> list[dict[str, torch.Tensor]]:
    """Two optimizer steps on the same rollouts, each of two micro-batches."""
    trainer = replaying_trainer(
        path, rollouts, output, optimizer=case.sgd, temperature=TEMPERATURE, max_completion_length=LONGEST,
        per_device_train_batch_size=len(rollouts) // 2, gradient_accumulation_steps=2, num_iterations=2, max_steps=2,
        max_grad_norm=0.0, gradient_checkpointing=False, **case.theirs,
    )  # fmt: skip
    snapshots = Snapshots()
    trainer.add_callback(snapshots)
    trainer.train()
    return snapshots.taken


def by_us(path: Path, rollouts, case: Case) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, float]]]:
    options = Optimization(learning_rate=case.rate, clip_norm=0, micro_tokens=150, precision="float32")
    strategy = TorchStrategy(path, options, reference=path if case.kl else None)
    strategy.stepper.optimizers = [case.sgd(strategy.stepper.parameters)]
    algorithm = case.algorithm()
    rows = build_rows(rollouts, algorithm)
    old = strategy.score(rows, TEMPERATURE)
    reference = strategy.score(rows, TEMPERATURE, reference=True) if case.kl else None
    taken, metrics = [], []
    for before in (None, old):
        report = strategy.step(rows, algorithm, TEMPERATURE, before, reference)
        assert not report.skipped
        metrics.append(report.metrics)
        taken.append(copy_of(strategy.model))
    return taken, metrics


@pytest.mark.parametrize("name", CASES)
def test_two_updates_change_the_parameters_as_those_of_trl(tiny_path, rollouts, tmp_path, name):
    theirs = by_trl(tiny_path, rollouts, CASES[name], tmp_path)
    ours, metrics = by_us(tiny_path, rollouts, CASES[name])
    assert 0 < metrics[1]["clipped"] < 1
    assert ("kl" in metrics[1]) == CASES[name].kl
    before = copy_of(TorchStrategy(tiny_path, Optimization(precision="float32")).model)
    for mine, other in zip(ours, theirs, strict=True):
        largest = max(float((mine[key] - before[key]).abs().max()) for key in before)
        difference = max(float((mine[key] - other[key]).abs().max()) for key in before)
        assert largest > 1e-4
        assert difference < min(1e-5, 1e-4 * largest)
        before = mine
