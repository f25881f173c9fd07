"""The record of one rollout: all that is needed to re-score it, replay it and train on it."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from envhub.guard import shown
from envhub.limits import Limits
from envhub.messages import Action, Message, Observation
from envhub.outcome import Outcome
from envhub.record_form import check_record
from envhub.tasks import Task
from envhub.trajectory import TokenRecordError, Trajectory

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the model's action and what the environment made of it.

    `observation` is None where the environment was not asked (the turn ended in a fault or a limit). `prompt_tokens`
    and `sampled_tokens` are the engine's counts; `engine_seconds` and `environment_seconds` are wall time.
    """

    action: Action
    observation: Observation | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    engine_seconds: float = 0.0
    environment_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "action": self.action.to_dict(),
            "observation": None if self.observation is None else self.observation.to_dict(),
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "info": dict(self.info),
            "prompt_tokens": self.prompt_tokens,
            "sampled_tokens": self.sampled_tokens,
            "engine_seconds": self.engine_seconds,
            "environment_seconds": self.environment_seconds,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Turn":
        """Inverse of `to_dict`."""
        observation = value["observation"]
        rest = {key: value[key] for key in value if key not in ("action", "observation")}
        return cls(
            Action.from_dict(value["action"]),
            None if observation is None else Observation.from_dict(observation),
            **rest,
        )


@dataclass(slots=True)
class Rollout:
    """One rollout, from its task to its outcome.

    `reward` is the sum of the turns' rewards plus what group rewards add; it is the model's only where
    `outcome.is_scored`. `components` are the rubric's unweighted parts. `fault` is the kind of what failed
    (`"environment"`, `"reward:NAME"`, `"engine"`, ...) and `error` its text. `group` names the rollouts of one task that
    are compared with each other, `member` counts them from 0, and `attempt` counts retries from 0. `target` is where the
    environment's class was loaded from.
    """

    environment: str
    task: Task
    limits: Limits
    outcome: Outcome = Outcome.CANCELLED
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    opening: Observation | None = None
    trajectory: Trajectory = field(default_factory=Trajectory)
    fault: str | None = None
    error: str | None = None
    group: str = ""
    member: int = 0
    attempt: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    content_hash: str | None = None
    target: str = ""
    model: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    started: float = field(default_factory=time.time)
    info: dict[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation."""
        out: list[Message] = list(self.opening.messages) if self.opening else []
        for turn in self.turns:
            out.append(turn.action.message)
            if turn.observation is not None:
                out.extend(turn.observation.messages)
        return tuple(out)

    @property
    def action_tokens(self) -> int:
        """How many tokens the model sampled."""
        return sum(turn.sampled_tokens for turn in self.turns)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "version": RECORD_VERSION,
            "id": self.id,
            "environment": self.environment,
            "config": self.config,
            "content_hash": self.content_hash,
            "target": self.target,
            "task": task_to_dict(self.task),
            "group": self.group,
            "member": self.member,
            "attempt": self.attempt,
            "model": self.model,
            "sampling": self.sampling,
            "limits": self.limits.model_dump(),
            "outcome": self.outcome.value,
            "reward": self.reward,
            "components": self.components,
            "fault": self.fault,
            "error": self.error,
            "opening": None if self.opening is None else self.opening.to_dict(),
            "turns": [turn.to_dict() for turn in self.turns],
            "trajectory": self.trajectory.to_dict(),
            "started": self.started,
            "seconds": self.seconds,
            "info": self.info,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Rollout":
        """Inverse of `to_dict`.

        Raises ValueError naming the field that is missing, unknown, or holds what it cannot; and for a record of a
        later version.
        """
        check_record(value, RECORD_VERSION)
        read = {field: _read(value[field], field, function) for field, function in _READERS.items()}
        rest = {key: item for key, item in value.items() if key not in _READERS and key != "version"}
        return cls(**read, **rest)


def task_to_dict(task: Task) -> dict[str, Any]:
    """JSON form of a task."""
    prompt = task.prompt if isinstance(task.prompt, str) else [message.to_dict() for message in task.prompt]
    out = {name: getattr(task, name) for name in ("id", "split", "index", "seed", "answer")}
    return {**out, "prompt": prompt, "info": dict(task.info)}


def task_from_dict(value: Mapping[str, Any]) -> Task:
    """Inverse of `task_to_dict`."""
    prompt = value["prompt"]
    given = prompt if isinstance(prompt, str) else tuple(Message.from_dict(message) for message in prompt)
    return Task(**{**value, "prompt": given})


_READERS: dict[str, Callable[[Any], Any]] = {
    "task": task_from_dict,
    "limits": Limits.model_validate,
    "outcome": Outcome,
    "opening": lambda value: None if value is None else Observation.from_dict(value),
    "turns": lambda value: [Turn.from_dict(turn) for turn in value],
    "trajectory": Trajectory.from_dict,
}


def _read(value: Any, field: str, function: Callable[[Any], Any]) -> Any:
    try:
        return function(value)
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in (field, *first["loc"]))
        raise ValueError(f"{place}: {first['msg']}, found {shown(first.get('input'), 80)}") from None
    except (ValueError, TypeError, KeyError, TokenRecordError) as problem:
        raise ValueError(f"{field}: {problem}") from None
