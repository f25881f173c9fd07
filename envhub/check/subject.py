"""The environment under examination: what the checks share."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from envhub.check.play import Episode, Policy, oracle_policy, play, random_policy
from envhub.check.report import Verdict, fail
from envhub.driver import Driver
from envhub.environment import Environment, has_oracle
from envhub.errors import DeadlineError, EnvironmentFault, Fault
from envhub.offload import ThreadHost
from envhub.registry import as_spec
from envhub.specs import EnvironmentSpec
from envhub.tasks import TRAIN, Task, TaskSet

T = TypeVar("T")

TURNS_AT_MOST = 64
_IMPORT_SECONDS = 120.0
_DEADLINE_REMEDY = (
    "bound every wait in the environment; where code cannot be bounded, set isolation = 'process' and it is killed"
)


@dataclass(slots=True)
class Subject:
    """An environment, how to drive it, and what earlier checks have found out about it."""

    given: EnvironmentSpec | str | type[Environment]
    config: Mapping[str, Any]
    episodes: int
    seconds_given: float | None
    spec: EnvironmentSpec = field(init=False)
    cls: type[Environment] = field(init=False)
    tasks: tuple[Task, ...] = ()
    seen: list[Episode] = field(default_factory=list)
    oracle_reward: float | None = None
    deterministic: bool = False
    _scripts: list[Episode] = field(default_factory=list)
    _shared: Driver | None = None

    @property
    def label(self) -> str:
        """The environment's name for reports, known before it is imported."""
        if isinstance(self.given, EnvironmentSpec):
            return self.given.id
        return self.given if isinstance(self.given, str) else getattr(self.given, "name", repr(self.given))

    @property
    def step_seconds(self) -> float:
        """The deadline of one call of the environment."""
        if self.seconds_given is not None:
            return self.seconds_given
        return self.cls.limits.step_seconds if hasattr(self, "cls") else 60.0

    @property
    def has_oracle(self) -> bool:
        """Whether the environment defines an oracle."""
        return has_oracle(self.cls)

    @property
    def max_turns(self) -> int:
        """The turns of an episode that is played to its end: the environment's own limit, within reason."""
        return min(self.cls.limits.max_turns, TURNS_AT_MOST)

    async def load(self) -> None:
        """Import the class. Raises UserError, DeadlineError."""
        spec = await off_loop(lambda: as_spec(self.given), "the import", _IMPORT_SECONDS)
        self.spec = replace(spec, config={**spec.config, **self.config})
        cls = await off_loop(self.spec.load, "the import", _IMPORT_SECONDS)
        self.cls = cls

    async def driver(self, **config: Any) -> Driver:
        """A driver of a fresh instance; the caller closes it."""
        what = f"environment {self.spec.id!r}: its constructor"
        return await off_loop(
            lambda: Driver(self.spec, config, step_seconds=self.step_seconds), what, max(self.step_seconds, 10.0)
        )

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Driver]:
        """A driver of a fresh instance that is closed at the end."""
        driver = await self.driver()
        try:
            yield driver
        finally:
            await driver.close()

    async def shared(self) -> Driver:
        """The driver that checks share which do not need a fresh instance; `release` closes it."""
        if self._shared is None:
            self._shared = await self.driver()
        return self._shared

    async def release(self) -> None:
        """Close the shared driver; the next use begins with a fresh instance, as it must after a fault."""
        driver, self._shared = self._shared, None
        if driver is not None:
            await driver.close()

    async def play(self, task: Task, policy: Policy, max_turns: int | None = None) -> Episode:
        """One episode on the shared driver."""
        episode = await play(await self.shared(), task, policy, max_turns or self.max_turns)
        if episode.fault is not None:
            await self.release()
        return episode

    async def read(self, function: Callable[[TaskSet], T]) -> T:
        """Call a function with the task set of a fresh instance, in a thread with a deadline."""
        driver = await self.driver()
        what = f"environment {self.spec.id!r}: reading its tasks"
        return await off_loop(lambda: function(driver.tasks), what, max(self.step_seconds, 10.0))

    async def draw_tasks(self) -> None:
        """Fill `tasks`: of the train split where there is one, at least two, with different seeds."""
        count = max(2, self.episodes)

        def draw(tasks: TaskSet) -> tuple[Task, ...]:
            split = TRAIN if TRAIN in tasks.splits else tasks.splits[0]
            size = tasks.size(split)
            return tuple(
                tasks.get(split, i if size is None else i % size, 0 if size is None else i // size)
                for i in range(count)
            )

        self.tasks = await self.read(draw)

    async def play_all(self, policy: Policy, count: int, max_turns: int | None = None) -> list[Episode]:
        """One episode of each of the first `count` tasks; a fault ends the series."""
        out: list[Episode] = []
        for task in self.tasks[:count]:
            out.append(await self.play(task, policy, max_turns))
            if out[-1].fault is not None:
                break
        self.seen.extend(out)
        return out

    async def scripts(self) -> list[Episode]:
        """Two episodes whose actions later ones repeat: the oracle's where there is one, and random words."""
        if self._scripts:
            return self._scripts
        turns = min(self.max_turns, 16)
        policies: list[Policy] = [oracle_policy if self.has_oracle else random_policy, random_policy]
        out: list[Episode] = []
        for task, policy in zip(self.tasks, policies, strict=False):
            out.append(await self.play(task, policy, turns))
            raise_if_hung(out[-1])
        self._scripts = out
        return out


async def off_loop(function: Callable[[], T], what: str, seconds: float) -> T:
    """Run the environment's own blocking code in a thread; DeadlineError naming `what` after `seconds`."""
    host = ThreadHost("check")
    try:
        result: T = await host.call(function, deadline=seconds, what=what)
        return result
    finally:
        host.close()


def raise_if_hung(episode: Episode) -> None:
    """Fail the check for a call that missed its deadline."""
    if episode.hung:
        raise of_fault(episode)


def of_fault(episode: Episode) -> Verdict:
    """The failure of an episode that a fault ended."""
    assert episode.fault is not None
    return fail(episode.failure() if episode.steps else str(episode.fault), remedy_of(episode.fault))


def remedy_of(problem: BaseException) -> str:
    """What to do about a fault."""
    text = str(problem)
    if isinstance(problem, DeadlineError):
        return _DEADLINE_REMEDY
    if "an observation is" in text:
        return "return a str, a Message, a sequence of Messages or an Observation"
    if "the component" in text:
        return "record finite numbers as components: info['components'] = {name: value}"
    if "the reward" in text or "reward '" in text:
        return "let every step return a finite number; a reward that cannot be decided raises EnvironmentFault"
    if "not (observation, reward" in text:
        return "return five values from step: observation, reward, terminated, truncated, info"
    if "not (observation, info)" in text:
        return "return two values from reset: observation, info"
    if isinstance(problem, EnvironmentFault) and " raised " in text:
        return "repair the line that is named; for an action that the task cannot take, answer the model or raise ModelFault"
    return "repair what the message names" if isinstance(problem, Fault) else ""
