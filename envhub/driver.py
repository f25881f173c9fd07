"""Drives one environment: plain or async methods, in a thread or a killable process, every call with a deadline.

Executors, `check`, `play` and the Gymnasium adapter all go through here, so that an environment behaves the same
wherever it runs. What the environment returns is checked, never repaired.
"""

import asyncio
import contextlib
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envhub.environment import Environment, has_oracle
from envhub.errors import DeadlineError, EnvironmentFault, Fault, ModelFault, UserError
from envhub.limits import Limits
from envhub.messages import Action, Observation
from envhub.offload import ProcessHost, ThreadHost
from envhub.rewards import Rubric
from envhub.specs import EnvironmentSpec
from envhub.tasks import Task, TaskSet

_MAKE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A checked result of `step`."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)


class Driver:
    """One environment instance under a deadline a call.

    Every failure of the environment comes out as an EnvironmentFault (a DeadlineError for a hang, a RewardFault for a
    reward) that names the environment and the call; a ModelFault that it raises on purpose travels on. Use from one task
    at a time; `close` always.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        config: Mapping[str, Any] | None = None,
        *,
        step_seconds: float = 60.0,
        environment: Environment | None = None,
    ) -> None:
        """`environment` is an instance to drive, instead of one that is made; it is used in this process only."""
        self.spec = spec
        self.environment_class = spec.load()
        self.config = {**spec.config, **(config or {})}
        self.isolation = self.environment_class.isolation
        if self.isolation not in ("thread", "process"):
            raise UserError(f"environment {spec.id!r}: isolation is thread or process, not {self.isolation!r}")
        self.step_seconds = step_seconds
        # The configuration is checked here in any case, so that a mistake in it is the user's and not a fault.
        self._environment = self.environment_class(self.config) if environment is None else environment
        self._process = ProcessHost(spec.id) if self.isolation == "process" else None
        self._thread: ThreadHost | None = None
        self._made = False

    @property
    def limits(self) -> Limits:
        """The environment's own default limits."""
        return self.environment_class.limits

    @property
    def tasks(self) -> TaskSet:
        """The environment's task set (of an instance in this process: reading tasks runs no episode)."""
        return self._environment.tasks

    @property
    def rubric(self) -> Rubric | None:
        """The environment's rubric, where it has one."""
        return getattr(self._environment, "rubric", None)

    @property
    def has_oracle(self) -> bool:
        """Whether the environment names its oracle."""
        return has_oracle(self.environment_class)

    async def reset(self, task: Task, *, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin the episode of a task; its own seed seeds the environment unless `seed` is given."""
        options = {"task": task}
        result = await self._call("reset", seed=task.seed if seed is None else seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise self._fault("reset", f"returned {result!r:.120}, not (observation, info)")
        return self._observation("reset", result[0]), result[1]

    async def step(self, action: Action) -> StepResult:
        """Take one step and check what comes back."""
        result = await self._call("step", action)
        if not (isinstance(result, tuple) and len(result) == 5):
            raise self._fault(
                "step", f"returned {result!r:.120}, not (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = result
        if isinstance(reward, bool) or not isinstance(reward, numbers.Real) or not math.isfinite(reward):
            raise self._fault("step", f"returned the reward {reward!r:.80}, not a finite number")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool) and type(flag).__name__ not in ("bool_", "bool"):
                raise self._fault("step", f"returned {name}={flag!r:.80}, not a bool")
        if not isinstance(info, dict):
            raise self._fault("step", f"returned info {info!r:.80}, not a dict")
        return StepResult(
            self._observation("step", observation), float(reward), bool(terminated), bool(truncated), info
        )

    async def oracle(self) -> Action | None:
        """The environment's own right action in the present state, None where it knows none."""
        if not self.has_oracle:
            return None
        action = await self._call("oracle")
        return None if action is None else Action.of(action)

    async def close(self) -> None:
        """Close the environment and free its thread or process. Never raises; the second time it does nothing."""
        begun, self._made = self._made, False
        try:
            if begun and (self._process is None or self._process.alive):
                with contextlib.suppress(Fault):
                    await self._call("close")
        finally:
            if self._thread is not None:
                self._thread.close()
                self._thread = None
            if self._process is not None:
                await self._process.kill()

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        what = f"environment {self.spec.id!r}: {name}"
        self._made = self._made or name != "close"
        try:
            if self._process is not None:
                if not self._process.alive:
                    if name != "reset":
                        raise self._fault(name, "its process is gone")
                    await self._process.make(self.spec.target, self.config, deadline=_MAKE_SECONDS, what=what)
                return await self._process.method(name, *args, deadline=self.step_seconds, what=what, **kwargs)
            return await self._call_here(getattr(self._environment, name), what, args, kwargs)
        except (EnvironmentFault, ModelFault):
            raise
        except UserError:
            raise
        except Exception as problem:
            raise self._fault(name, f"raised {type(problem).__name__}: {problem}", problem) from problem

    async def _call_here(
        self, method: Callable[..., Any], what: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not is_async(method):
            if self._thread is None:
                self._thread = ThreadHost(self.spec.id)
            return await self._thread.call(method, *args, deadline=self.step_seconds, what=what, **kwargs)
        try:
            async with asyncio.timeout(self.step_seconds) as scope:
                awaitable: Awaitable[Any] = method(*args, **kwargs)
                return await awaitable
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineError(f"{what} did not return within {self.step_seconds:g} s") from None

    def _observation(self, name: str, value: Any) -> Observation:
        try:
            return Observation.of(value)
        except TypeError as problem:
            raise self._fault(name, str(problem)) from None

    def _fault(self, name: str, problem: str, cause: BaseException | None = None) -> EnvironmentFault:
        place = ""
        if cause is not None and cause.__traceback__ is not None:
            trace = cause.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        return EnvironmentFault(f"environment {self.spec.id!r}: {name} {problem}{place}")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(function)
