"""Rewards: plain functions whose parameters are injected by name, composed by weight in a rubric.

A reward function returns a finite number. One that raises, hangs or returns anything else is a `RewardFault`, never a
reward of 0.
"""

import asyncio
import functools
import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from envhub.errors import DeadlineError, Fault, RewardFault, UserError, did_you_mean
from envhub.guard import MAX_REWARD, converted, described, finite, shown
from envhub.messages import Action, Message
from envhub.offload import ProcessPool, ThreadHost
from envhub.task_host import TaskHost
from envhub.tasks import Task

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a reward function may ask for by parameter name.

    `action` (the last one), `text` (its text), `task`, `answer` (the task's), `prompt` (the task's messages as text),
    `messages` (the conversation with the last action), `info` (the task's info), `rng` (seeded by the task), and
    `environment` (only for functions that run in this process).
    """

    task: Task
    action: Action
    messages: tuple[Message, ...] = ()
    environment: Any = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        return self.action.text

    @property
    def answer(self) -> Any:
        return self.task.answer

    @property
    def prompt(self) -> str:
        return "\n".join(message.text for message in self.task.messages)

    @property
    def info(self) -> Mapping[str, Any]:
        return self.task.info

    @property
    def rng(self) -> random.Random:
        return random.Random(self.task.seed)


INJECTABLE = ("action", "answer", "environment", "info", "messages", "prompt", "rng", "task", "text")
GROUP = "group"


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function with its name, weight and manner of running.

    `isolation` is `"inline"` (on the event loop; for quick pure functions and coroutines), `"thread"` (the default for
    plain functions) or `"process"` (killed at the deadline; the function must be a module's own). `seconds` is its
    deadline. A function with a parameter `group` sees the contexts of the whole group and returns one number for each.
    """

    function: Callable[..., Any]
    name: str
    weight: float = 1.0
    seconds: float = 30.0
    isolation: str = "thread"

    def __post_init__(self) -> None:
        if self.isolation not in ("inline", "thread", "process"):
            hint = did_you_mean(self.isolation, ("inline", "thread", "process"))
            raise UserError(
                f"reward {self.name!r}: isolation is inline, thread or process, not {self.isolation!r}{hint}"
            )
        if not math.isfinite(self.weight):
            raise UserError(f"reward {self.name!r}: its weight is not finite: {self.weight}")
        if self.seconds <= 0:
            raise UserError(f"reward {self.name!r}: its deadline is positive, not {self.seconds}")
        if self.isolation == "process" and ("<" in self.function.__qualname__ or "environment" in self.parameters):
            raise UserError(
                f"reward {self.name!r} runs in a process: it must be a function of a module and take no 'environment'"
            )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names that are injected. Raises UserError for one that nothing provides."""
        return _parameters(self.function, self.name)

    @property
    def is_group(self) -> bool:
        """Whether it scores a whole group at once."""
        return GROUP in self.parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def score(self, context: RewardContext) -> float:
        """The unweighted score of one rollout. Raises RewardFault."""
        arguments = {name: getattr(context, name) for name in self.parameters}
        value = await self._run(arguments)
        with converted(lambda problem: RewardFault(self.name, f"returned what raises {described(problem)}")):
            return _finite(self.name, value)

    async def score_group(self, contexts: Sequence[RewardContext]) -> list[float]:
        """One unweighted score for each context of a group, in order. Raises RewardFault."""
        values = await self._run({GROUP: list(contexts)})
        with converted(lambda problem: RewardFault(self.name, f"returned what raises {described(problem)}")):
            if not isinstance(values, Sequence) or len(values) != len(contexts):
                raise RewardFault(
                    self.name, f"returned {shown(values)}, not one number for each of {len(contexts)} rollouts"
                )
            return [_finite(self.name, value) for value in values]

    async def _run(self, arguments: dict[str, Any]) -> Any:
        what = f"reward {self.name!r}"
        try:
            if self.isolation == "process":
                target = f"{_module_of(self.function)}:{self.function.__qualname__}"
                return await process_pool().call(target, deadline=self.seconds, what=what, **arguments)
            if self.isolation == "inline" or inspect.iscoroutinefunction(self.function):
                task = TaskHost()
                try:
                    return await task.call(self.function, deadline=self.seconds, what=what, **arguments)
                finally:
                    task.close()
            host = _idle_thread()
            value = await host.call(self.function, deadline=self.seconds, what=what, **arguments)
            _idle_threads.append(host)
            return value
        except DeadlineError as problem:
            raise RewardFault(self.name, str(problem).removeprefix(what).strip()) from None
        except Fault as problem:
            raise RewardFault(self.name, f"failed: {problem}") from problem
        except Exception as problem:
            raise RewardFault(self.name, f"raised {described(problem)}") from problem


@overload
def reward(function: F, /) -> Reward: ...
@overload
def reward(
    *, weight: float = 1.0, name: str | None = None, seconds: float = 30.0, isolation: str = "thread"
) -> Callable[[F], Reward]: ...
def reward(
    function: Any = None,
    /,
    *,
    weight: float = 1.0,
    name: str | None = None,
    seconds: float = 30.0,
    isolation: str = "thread",
) -> Any:
    """Make a function a reward: `@reward` or `@reward(weight=0.5, isolation="process")`."""
    if function is None:
        return lambda inner: reward_of(inner, weight=weight, name=name, seconds=seconds, isolation=isolation)
    return reward_of(function)


def reward_of(function: Callable[..., Any] | Reward, **options: Any) -> Reward:
    """A Reward from a plain function, or the reward itself."""
    if isinstance(function, Reward):
        return function
    name = options.pop("name", None) or function.__name__
    made = Reward(function, name, **options)
    _ = made.parameters
    return made


@dataclass(frozen=True, slots=True)
class Score:
    """A rubric's verdict: the weighted total, and each component unweighted by name."""

    total: float
    components: Mapping[str, float] = field(default_factory=dict)


class Rubric:
    """Named rewards composed by weight: total = Σ weight · component. Components of weight 0 are recorded only."""

    def __init__(self, *rewards: Callable[..., Any] | Reward) -> None:
        self.rewards = tuple(reward_of(item) for item in rewards)
        names = [item.name for item in self.rewards]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UserError(f"two rewards are named {sorted(twice)[0]!r}; give one another name: @reward(name=…)")

    @functools.cached_property
    def group_rewards(self) -> tuple[Reward, ...]:
        """The rewards that see the whole group."""
        return tuple(item for item in self.rewards if item.is_group)

    async def score(self, context: RewardContext) -> Score:
        """Score one rollout by every reward that needs no group. Raises RewardFault naming the first that failed."""
        components = {item.name: await item.score(context) for item in self.rewards if not item.is_group}
        return Score(self._total(components), components)

    async def score_group(self, contexts: Sequence[RewardContext]) -> list[Score]:
        """What the group rewards add to each rollout of a group, in order. Raises RewardFault."""
        columns = {item: await item.score_group(contexts) for item in self.group_rewards}
        rows = [{item.name: values[i] for item, values in columns.items()} for i in range(len(contexts))]
        return [Score(self._total(row), row) for row in rows]

    def _total(self, components: Mapping[str, float]) -> float:
        total = sum(item.weight * components[item.name] for item in self.rewards if item.name in components)
        return _finite("total", float(total))


def _finite(name: str, value: Any) -> float:
    number = float(value) if isinstance(value, bool) else finite(value)
    if number is None:
        raise RewardFault(name, f"returned {shown(value)}, not a finite number within ±{MAX_REWARD:g}")
    return number


@functools.lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in INJECTABLE or parameter.name == GROUP:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            hint = did_you_mean(parameter.name, (*INJECTABLE, GROUP))
            raise UserError(
                f"reward {name!r} asks for {parameter.name!r}; a reward may ask for {', '.join(INJECTABLE)} or group{hint}"
            )
    if GROUP in names and len(names) > 1:
        raise UserError(
            f"reward {name!r} takes 'group': the contexts in it hold all the rest, so it takes nothing else"
        )
    return tuple(names)


def _module_of(function: Callable[..., Any]) -> str:
    """The module to import the function from: its file where it was loaded from one."""
    if function.__module__.startswith("envhub_file_") or function.__module__ == "__main__":
        return inspect.getfile(function)
    return function.__module__


_idle_threads: list[ThreadHost] = []


def _idle_thread() -> ThreadHost:
    return _idle_threads.pop() if _idle_threads else ThreadHost("reward")


_pools: dict[int, ProcessPool] = {}


def process_pool() -> ProcessPool:
    """The pool of the running event loop, with one process for each core."""
    import os

    loop = asyncio.get_running_loop()
    if id(loop) not in _pools or getattr(_pools[id(loop)], "loop", None) is not loop:
        pool = ProcessPool(os.cpu_count() or 1, "reward")
        pool.loop = loop  # type: ignore[attr-defined]
        _pools[id(loop)] = pool
    return _pools[id(loop)]
