"""Rollouts made by hand, and a small model."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envhub.limits import Limits
from envhub.outcome import Outcome
from envhub.rollout import Rollout
from envhub.tasks import Task
from envhub.trajectory import Trajectory

LETTERS = '''
from envhub import GeneratedTasks, SingleTurnEnvironment, Task

def share(text):
    """The share of the text's characters that are lower-case vowels: dense, so that a random model can learn it."""
    return sum(char in "aeiou" for char in text) / max(1, len(text))

class Letters(SingleTurnEnvironment):
    """Write vowels."""
    tasks = GeneratedTasks("letters", lambda rng: Task(f"Write vowels. {rng.randrange(1000)}", answer="aeiou"))
    rewards = (share,)
'''


@pytest.fixture(scope="session")
def letters_source() -> str:
    """The file of an environment whose reward is the share of vowels, `Letters`; other classes may be added."""
    return LETTERS


@pytest.fixture
def letters(tmp_path: Path, letters_source: str) -> str:
    """That environment, as a file of the test's own."""
    file = tmp_path / "letters.py"
    file.write_text(letters_source)
    return f"{file}:Letters"


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
