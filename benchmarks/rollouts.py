"""Rollouts made by hand, for benchmarks that need no engine."""

import math
import random
from collections.abc import Sequence

from envhub.limits import Limits
from envhub.outcome import Outcome
from envhub.rollout import Rollout
from envhub.tasks import Task
from envhub.trajectory import Trajectory

_TASK, _LIMITS = Task("q"), Limits()


def written(turns: Sequence[tuple[Sequence[int], Sequence[int]]], reward: float, group: str) -> Rollout:
    """A scored rollout of turns `[(rendered ids, sampled ids), ...]`, its logprobs all -1."""
    trajectory, leaf = Trajectory(), None
    for number, (rendered, sampled) in enumerate(turns):
        leaf = trajectory.add_rendered(leaf, rendered, turn=number)
        given, logprobs, versions = trajectory.path_ids(leaf), [-1.0] * len(sampled), [0] * len(sampled)
        leaf = trajectory.add_sampled(leaf, given, sampled, logprobs, versions, turn=number, finish_reason="stop")
    return Rollout("written", _TASK, _LIMITS, Outcome.FINISHED, reward, trajectory=trajectory, group=group)


def lognormal(rng: random.Random, mean: float, most: int, variation: float = 1.0) -> int:
    """A length from 1 to `most`, log-normal with this mean and coefficient of variation before it is cut."""
    sigma = math.sqrt(math.log(1 + variation**2))
    return max(1, min(most, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))
