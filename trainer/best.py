"""Which checkpoint is the best, by a metric of the evaluations that were made of it."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from envhub.errors import UserError, did_you_mean

METRICS = ("reward", "reward_low", "passed", "passed_low")
"""What can be chosen by: more is better. `_low` is the lower end of the interval."""


def metric_of(best: str, eval_every: int, eval_tasks: int) -> str:
    """The metric that a run's setting `best` means, empty for none. Raises UserError for an unknown one."""
    if best == "auto":
        return "reward" if eval_every and eval_tasks else ""
    if best == "none":
        return ""
    if best not in METRICS:
        raise UserError(
            f"no metric {best!r} to choose the best checkpoint by; there are {', '.join(METRICS)}, auto and none"
            f"{did_you_mean(best, METRICS)}"
        )
    if not eval_tasks:
        raise UserError(
            f"best {best!r} chooses by evaluations, and there are none: set eval_tasks above 0, or best to none"
        )
    return best


def values(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[int, float]:
    """The metric of every step that was evaluated: its mean over environments, of which the last row of each counts.

    A step that lacks a row or a scored rollout of some environment has none.
    """
    found: dict[int, dict[Any, Any]] = {}
    for row in rows:
        if row["kind"] == "eval":
            found.setdefault(row["step"], {})[row.get("env")] = row.get(metric)
    environments = {name for by_env in found.values() for name in by_env}
    return {
        step: math.fsum(by_env.values()) / len(by_env)
        for step, by_env in found.items()
        if len(by_env) == len(environments) and all(isinstance(value, int | float) for value in by_env.values())
    }


def choose(found: Mapping[int, float], steps: Collection[int]) -> int | None:
    """Of the steps with a checkpoint the one with the largest value, the earliest of equal ones; None where none has one."""
    known = sorted(step for step in steps if step in found)
    return max(known, key=lambda step: found[step]) if known else None
