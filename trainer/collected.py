"""What a step has sampled, and what it was like."""

import math
import statistics
from dataclasses import dataclass

from envhub.agents.evaluation import passes
from envhub.agents.executors import Group
from envhub.rollout import Rollout
from envhub.trainer.shaping import is_cut


@dataclass(frozen=True, slots=True)
class Collected:
    """The groups of a step, the seconds that they took, and the sampler's position after them."""

    groups: list[Group]
    seconds: float
    end: int


def rollouts_of(groups: list[Group]) -> list[Rollout]:
    """The rollouts of groups that count."""
    return [rollout for group in groups for rollout in group.rollouts]


def has_spread(group: Group) -> bool:
    """Whether the rewards of a group differ as the environment gave them, before any shaping (as DAPO filters)."""
    return len({rollout.reward for rollout in group.rollouts}) > 1


def describe(groups: list[Group]) -> dict[str, float]:
    """What a step's rollouts were like; rates are over the scored ones."""
    scored = rollouts_of(groups)
    spread = [has_spread(group) for group in groups]
    rewards = [rollout.reward for rollout in scored]

    def mean(values: list[float]) -> float:
        return statistics.fmean(values) if values else math.nan

    return {
        "reward": mean(rewards),
        "reward_std": statistics.pstdev(rewards) if rewards else math.nan,
        "passed": mean([float(passes(rollout)) for rollout in scored]),
        "rollouts": float(len(scored)),
        "dropped": float(sum(len(group.dropped) for group in groups)),
        "groups_with_spread": float(sum(spread)),
        "turns": mean([float(len(rollout.turns)) for rollout in scored]),
        "sampled_tokens": float(sum(rollout.action_tokens for rollout in scored)),
        "truncated": mean([float(rollout.outcome.is_truncated or is_cut(rollout)) for rollout in scored]),
        "forks": float(sum(len(rollout.trajectory.forks) for rollout in scored)),
    }
