"""Errors with a meaning of their own: the user's mistakes, and the faults of a rollout.

A `UserError` is a mistake that its reader can repair; the command line prints its message in one line and exits with
code 2. A `Fault` says whose fault it was that a rollout could not go on; executors turn it into an `Outcome`.
"""

import difflib
from collections.abc import Iterable


class EnvhubError(Exception):
    """Base of every error that envhub raises on purpose."""


class UserError(EnvhubError):
    """A mistake of the user. The message names the thing and the remedy; no traceback is shown without `--debug`."""


class ConfigError(UserError):
    """An unknown key, or a value of the wrong type or range, in a configuration."""


class NotRegisteredError(UserError):
    """A name that no registry knows."""


class DataError(UserError):
    """A data file that cannot be used; the message names the file and, where there is one, the line."""


class MissingExtraError(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency; install it with: pip install 'envhub[{extra}]'")
        self.extra = extra


class Fault(EnvhubError):
    """Something ended a rollout from outside of the task's own rules."""


class ModelFault(Fault):
    """The model's action could not be understood and the episode cannot go on. Counts as reward 0 for the model."""


class EnvironmentFault(Fault):
    """The environment, a tool or a reward failed. Never counted as reward 0: retried, then dropped with a count."""


class RewardFault(EnvironmentFault):
    """A reward function failed, or returned something that is not a finite number. A fault with its own count."""

    def __init__(self, reward: str, problem: str) -> None:
        super().__init__(f"reward {reward!r} {problem}")
        self.reward = reward


class EngineFault(Fault):
    """The engine failed to generate. Never counted against the model."""


class DeadlineError(EnvironmentFault):
    """An environment, a tool or a reward did not answer within its deadline."""


def did_you_mean(name: str, known: Iterable[str], *, limit: int = 1) -> str:
    """`"; did you mean 'x'?"` for the nearest known name, or an empty string when none is near."""
    candidates = sorted(set(known))
    near = [candidate for candidate in candidates if _is_slip(name, candidate)][:limit]
    near = near or difflib.get_close_matches(name, candidates, n=limit, cutoff=0.5)
    if not near:
        folded = {candidate.lower(): candidate for candidate in candidates}
        near = [folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=limit, cutoff=0.6)]
    if not near:
        return ""
    return "; did you mean " + " or ".join(repr(match) for match in near) + "?"


def _is_slip(name: str, candidate: str) -> bool:
    """Whether a name is another with its letters in a wrong order, or the first letters of its words."""
    if len(name) > 2 and sorted(name) == sorted(candidate):
        return True
    letters = name.strip("-")
    words = candidate.strip("-").replace("_", "-").split("-")
    return len(words) > 1 and letters == "".join(word[:1] for word in words)
