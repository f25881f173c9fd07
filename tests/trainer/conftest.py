"""Rollouts made by hand, and a small model."""

from collections.abc import Callable, Sequence

import pytest

from envhub.limits import Limits
from envhub.outcome import Outcome
from envhub.rollout import Rollout
from envhub.tasks import Task
from envhub.trajectory import Trajectory


@pytest.fixture(scope="session")
def tiny_path():
    from envhub.agents.models import resolve_model

    return resolve_model("tiny").path


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    """A scored rollout of turns `[(rendered ids, sampled ids), ...]` with logprob -1 at every sampled token."""

    def make(turns: Sequence[tuple[list[int], list[int]]], reward: float, group: str = "a") -> Rollout:
        trajectory, leaf = Trajectory(), None
        for number, (rendered, sampled) in enumerate(turns):
            leaf = trajectory.add_rendered(leaf, rendered, turn=number)
            given = list(trajectory.path_ids(leaf))
            leaf = trajectory.add_sampled(
                leaf, given, sampled, [-1.0] * len(sampled), [0] * len(sampled), turn=number, finish_reason="stop"
            )
        return Rollout("e", Task("q"), Limits(), Outcome.FINISHED, reward, trajectory=trajectory, group=group)

    return make
