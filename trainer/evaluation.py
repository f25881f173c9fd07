"""Evaluation during training: on held-out tasks of one environment or several."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envhub.agents.evaluation import EvalPlan, evaluate, summarise
from envhub.agents.executors import Executor
from envhub.records import RolloutStore
from envhub.rollout import Rollout
from envhub.trainer.config import TrainConfig
from envhub.trainer.held_out import HeldOut
from envhub.trainer.metrics import MetricsLog, read_metrics
from envhub.trainer.plan import sampling_of
from envhub.trainer.progress import Progress

BEFORE, WARM, STEP, AFTER = "before", "warm", "step", "after"
"""The moments of an evaluation: of the untrained model, after the warm start, after a step on the way, at the end."""
MOMENTS = {BEFORE: "before training", WARM: "after the warm start", AFTER: "after training"}
"""What they are called, but for steps on the way, which have numbers."""


@dataclass(slots=True)
class Evaluator:
    """Evaluates the engine's present weights on each environment in turn.

    An evaluation of an environment leaves a row of metrics, and its rollouts in the store (phase `eval`).
    """

    config: TrainConfig
    held_out: Sequence[HeldOut]
    executor: Executor
    store: RolloutStore
    log: MetricsLog
    progress: Progress
    folder: Path

    async def run(self, when: str, step: int) -> None:
        """Evaluate after `step` finished steps, at the moment `when`."""
        for held in self.held_out:
            await self._evaluate(held, when, step)

    async def run_missing(self, when: str, step: int) -> None:
        """Evaluate a step where that was not done before the run was stopped.

        What was evaluated before training is of step 0 too, and is not the evaluation after the warm start.
        """
        rows = [row for row in read_metrics(self.folder) if (row["kind"], row["step"]) == ("eval", step)]
        done = {row.get("env") for row in rows if when != WARM or row.get("when") == WARM}
        for held in self.held_out:
            name = held.environment.id
            if name not in done:
                finished = sum(row["rollouts"] for row in rows if row.get("env") == name)
                self.store.drop_after("eval", step - 1, environment=name, keep=finished)
                await self._evaluate(held, when, step)

    async def _evaluate(self, held: HeldOut, when: str, step: int) -> None:
        config, name = self.config, held.environment.id
        plan = EvalPlan(
            held.environment, held.config, held.split, held.tasks, config.eval_samples, config.seed,
            sampling_of(config, evaluation=True), held.limits, config.concurrency, config.retries,
        )  # fmt: skip
        begun, total = time.monotonic(), held.tasks * config.eval_samples
        done: list[Rollout] = []
        said = MOMENTS.get(when, f"after step {step}")
        where = f" on {name}" if len(self.held_out) > 1 else ""

        async with self.progress.during(
            lambda: f"evaluation{where} {said}: {len(done)} of {total} rollouts", lambda: len(done) / total
        ):
            rollouts = await evaluate(self.executor, plan, on_rollout=done.append)
        self.store.add_all(rollouts, phase="eval", step=step)
        summary, seconds = summarise(rollouts), time.monotonic() - begun
        sampled = sum(rollout.action_tokens for rollout in rollouts if rollout.outcome.is_scored)
        self.log.write(step, "eval", {
            "env": name, "when": when,
            "reward": summary.reward.mean, "reward_low": summary.reward.low, "reward_high": summary.reward.high,
            "passed": summary.passed.mean, "passed_low": summary.passed.low, "passed_high": summary.passed.high,
            "tasks": summary.tasks, "rollouts": summary.rollouts, "scored": summary.scored, "faults": summary.faults,
            "turns": summary.turns, "sampled_tokens": sampled, "seconds": seconds,
        })  # fmt: skip
        result = f"{said}: reward {summary.reward}, passed {summary.passed}"
        self.progress.evaluated(name, result)
        self.progress.say(
            f"evaluation{where} {result} ({summary.scored} of {summary.rollouts} rollouts scored, {seconds:.0f} s)"
        )
