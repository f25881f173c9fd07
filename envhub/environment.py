"""The contract of an environment.

Gymnasium's words, async: `reset` gives the first observation, `step` takes the model's action. Plain `def` methods are
equally good; whoever drives the environment runs them off the event loop (see `envhub.driver`).
"""

import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from envhub.errors import ConfigError, did_you_mean
from envhub.limits import Limits
from envhub.messages import Action, ActionLike, ObservationLike
from envhub.tasks import SeedTasks, TaskSet

Info: TypeAlias = dict[str, Any]
Reset: TypeAlias = tuple[ObservationLike, Info]
Step: TypeAlias = tuple[ObservationLike, float, bool, bool, Info]


class EnvironmentConfig(BaseModel):
    """Base of environment configurations. Unknown keys are errors; instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Environment:
    """One episode at a time of a task between a model and a world.

    Subclasses set `Config` (a pydantic model), `name`, and implement `reset` and `step`; `limits` are the episode's
    default limits, `isolation` says where plain `def` methods run ("thread", or "process" for code that may hang or
    crash). `oracle`, where given, plays the right action: it lets `envhub check` prove that the task can be solved.

    All randomness comes from `self.rng`, which `reset(seed=…)` has seeded before the subclass's own `reset` runs; the
    global generators are never touched.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[EnvironmentConfig]] = EnvironmentConfig
    limits: ClassVar[Limits] = Limits()
    isolation: ClassVar[str] = "thread"

    config: Any
    rng: random.Random

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None, **overrides: Any) -> None:
        self.config = make_config(type(self), config, overrides)
        self.rng = random.Random()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reset" in cls.__dict__:
            cls.reset = _seeding(cls.__dict__["reset"])  # type: ignore[method-assign]
        if "name" not in cls.__dict__:
            cls.name = _snake_case(cls.__name__)

    @functools.cached_property
    def tasks(self) -> TaskSet:
        """The task set. An environment without one has an infinite set of seeds."""
        return SeedTasks(self.name)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Reset | Awaitable[Reset]:
        """Begin an episode and return the first observation and an info dictionary.

        `options["task"]` is the task to play (an `envhub.Task`); without it the environment chooses by `self.rng`.
        """
        raise TypeError(f"{type(self).__name__} does not define reset")

    def step(self, action: Any) -> Step | Awaitable[Step]:
        """Take the model's action; return observation, reward, terminated, truncated, info.

        `terminated` is the task's own end, `truncated` a limit of the environment. Raise `ModelFault` when the action
        makes it impossible to go on, `EnvironmentFault` when the world failed.
        """
        raise TypeError(f"{type(self).__name__} does not define step")

    def oracle(self) -> ActionLike | Awaitable[ActionLike] | None:
        """The right action in the present state, or None where the environment knows none."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Free what the episode holds. Called once after the last step, also after a fault."""
        return None

    def seed(self, seed: int | None) -> None:
        """Seed `self.rng`; None leaves it as it is. `reset` has done this before its own body runs."""
        if seed is not None:
            self.rng = random.Random(seed)


def has_oracle(environment: type[Environment]) -> bool:
    """Whether the environment defines an oracle of its own."""
    return environment.oracle is not Environment.oracle


def make_config(
    cls: type[Environment], config: EnvironmentConfig | Mapping[str, Any] | None, overrides: Mapping[str, Any]
) -> EnvironmentConfig:
    """Validate a configuration for an environment class.

    Raises ConfigError naming the key, and the nearest valid one.
    """
    given = config.model_dump() if isinstance(config, EnvironmentConfig) else dict(config or {})
    made: EnvironmentConfig = validate_config(cls.Config, {**given, **overrides}, f"environment {cls.name!r}")
    return made


_PLAINER = {"tuple_type": "takes a list of values", "dict_type": "takes a table of keys and values"}


def validate_config(model: type[BaseModel], values: Mapping[str, Any], owner: str) -> Any:
    """`model(**values)` with errors that name the owner, the key, what was given and the nearest valid key."""
    for key, value in values.items():
        kind = model.model_fields[key].annotation if key in model.model_fields else bool
        if isinstance(value, bool) and not _takes_bool(kind):
            raise ConfigError(f"{owner}: {key}: a number or a text is wanted, not {str(value).lower()}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(model.model_fields)) or "no keys at all"
            hint = did_you_mean(str(first["loc"][-1]), model.model_fields)
            raise ConfigError(f"{owner} has no configuration key {key!r} (it has {known}){hint}") from None
        problem_text = _PLAINER.get(first["type"], first["msg"].removeprefix("Value error, "))
        if not key:  # of several together
            raise ConfigError(f"{owner}: {problem_text}") from None
        given = repr(first.get("input"))[:80]
        raise ConfigError(f"{owner}: {key}: {problem_text} (given {given})") from None


def _takes_bool(kind: Any) -> bool:
    """Whether a field of this type may be true or false; numbers would take them for 1 and 0."""
    parts = get_args(kind)
    return any(map(_takes_bool, parts)) if parts else kind not in (int, float, str)


def _seeding(reset: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a subclass's `reset` so that `self.rng` is seeded before its body runs."""
    if inspect.iscoroutinefunction(reset):

        @functools.wraps(reset)
        async def seeded_async(self: Environment, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
            self.seed(seed)
            return await reset(self, *args, seed=seed, **kwargs)

        return seeded_async

    @functools.wraps(reset)
    def seeded(self: Environment, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        self.seed(seed)
        return reset(self, *args, seed=seed, **kwargs)

    return seeded


def _snake_case(name: str) -> str:
    name = name.removesuffix("Environment") or name
    out = "".join("_" + char.lower() if char.isupper() and i else char.lower() for i, char in enumerate(name))
    return out.replace("__", "_")


__all__ = [
    "Action",
    "Environment",
    "EnvironmentConfig",
    "Info",
    "Reset",
    "Step",
    "has_oracle",
    "make_config",
    "validate_config",
]
