"""The update: what is learnt from the rollouts of a training step."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from envhub.records import write_rollouts
from envhub.rollout import Rollout
from envhub.tasks import hashed_seed
from envhub.trainer import alarms, kl
from envhub.trainer.algorithms import Algorithm
from envhub.trainer.batch import Rows, assign, split, token_rows
from envhub.trainer.config import TrainConfig
from envhub.trainer.shaping import Shaping
from envhub.trainer.strategy import StepReport, Strategy


@dataclass(slots=True)
class Learner:
    """Lets the strategy learn from rollouts: rewards, KL, values, advantages, optimizer steps.

    `algorithm` has the weight that the KL has now. `skipped` counts the last updates in a row that were not finite, whose
    rollouts are written to `folder`; `moved` says whether an update has moved a parameter.
    """

    config: TrainConfig
    algorithm: Algorithm
    shaping: Shaping
    strategy: Strategy
    folder: Path
    warn: Callable[[str], object]
    skipped: int = 0
    moved: bool = False

    def update(self, rollouts: list[Rollout], done: int) -> dict[str, float]:
        """Take the optimizer steps on a step's rollouts, after `done` finished steps, and return their metrics, averaged.

        Empty where no rollout has an action token; the reference is refreshed all the same when it is time. Raises UserError where the first update moves no parameter, and for the
        third in a row that is not finite.
        """
        values = self._learn(rollouts, done) if any(r.trajectory.action_tokens for r in rollouts) else {}
        every = self.config.reference_every
        if every and (done + 1) % every == 0:
            self.strategy.refresh_reference()
        return values

    def _learn(self, rollouts: list[Rollout], done: int) -> dict[str, float]:
        config, algorithm = self.config, self.algorithm
        rows = token_rows(rollouts)
        by_turn = algorithm.credit == "turn"
        rewards = self.shaping.by_turn(rollouts) if by_turn else self.shaping(rollouts)
        if algorithm.critic:
            rows.values = self.strategy.values(rows)
        divergence = self._divergence(rows)
        assign(rows, rewards, algorithm, divergence)
        several = config.updates_per_step > 1 and not algorithm.bypass  # which takes the engine's logprobs
        generator = torch.Generator().manual_seed(hashed_seed("updates", config.seed, done))
        reports: list[StepReport] = []
        only_critic = algorithm.critic and done < config.critic_warmup
        parts = split(rows, min(config.updates_per_step, len(rows)), algorithm, generator)
        # With one optimizer step the policy is the one that sampled: no need to compute its logprobs beforehand.
        olds = [
            self.strategy.score(part, config.temperature) if several and not only_critic else None for part in parts
        ]
        before = None if self.moved or only_critic else alarms.fingerprint(self.strategy)
        for number, (part, old) in enumerate(zip(parts, olds, strict=True)):
            if algorithm.critic:
                reports.append(self.strategy.step_critic(part, algorithm))
            if not only_critic:
                report = self.strategy.step(part, algorithm, config.temperature, old, self._reference(part))
                reports.append(report.without_mismatch() if number and algorithm.bypass else report)
        self.count_skipped([report.skipped for report in reports], done + 1, rollouts)
        names = dict.fromkeys(name for report in reports for name in report.metrics)
        values = {
            name: statistics.fmean(report.metrics[name] for report in reports if name in report.metrics)
            for name in names
        }
        if before is not None and not any(report.skipped for report in reports):
            alarms.refuse_unmoved(before, self.strategy, values["gradient_norm"])
            self.moved = values["gradient_norm"] > 0
        if divergence is not None:
            values["kl"] = float((divergence * rows.mask).sum()) / rows.action_tokens
        return values | self._adapt(values.get("kl"), len(rollouts))

    def count_skipped(self, reasons: Sequence[str], step: int, rollouts: Sequence[Rollout] = ()) -> None:
        """Count the updates of `step` that were not finite, for these reasons; empty for one that was made.

        Raises UserError for the third in a row.
        """
        kept = ""
        if any(reasons) and rollouts:
            kept = str(self.folder / f"skipped-step-{step}.jsonl")
            write_rollouts(Path(kept), rollouts)
        others = alarms.weights(self.algorithm)
        self.skipped = alarms.count_skipped(self.skipped, step, reasons, self.warn, kept=kept, others=others)

    def warn_of_none_made(self, steps: int) -> None:
        """Say so where every update of a run of so many steps was skipped."""
        if self.skipped >= steps * self.config.updates_per_step:
            others = alarms.weights(self.algorithm)
            self.warn(
                f"warning: no update of the run was finite, so nothing was trained: lower --learning-rate{others}"
            )

    def _adapt(self, divergence: float | None, rollouts: int) -> dict[str, float]:
        """Move the weight of the KL towards its target."""
        config, used = self.config, self.algorithm.kl_coef
        if divergence is None:
            return {}
        if config.kl_target is not None:
            coefficient = kl.adapted(used, divergence, config.kl_target, rollouts, config.kl_horizon)
            self.algorithm = self.algorithm.with_options(kl_coef=coefficient)
        return {"kl_coef": used}

    def _divergence(self, rows: Rows) -> torch.Tensor | None:
        """The k1 estimate to the reference of each action token, where the algorithm takes it from the reward."""
        if not self.algorithm.kl_coef or self.algorithm.kl_in != "reward":
            return None
        reference = self.strategy.score(rows, self.config.temperature, reference=True)
        bypass = self.algorithm.bypass
        return kl.k1(rows.behaviour if bypass else self.strategy.score(rows, self.config.temperature), reference)

    def _reference(self, rows: Rows) -> torch.Tensor | None:
        if not self.algorithm.kl_coef or self.algorithm.kl_in != "loss":
            return None
        return self.strategy.score(rows, self.config.temperature, reference=True)
