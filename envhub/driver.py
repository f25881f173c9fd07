"""Drives one environment: plain or async methods, in a thread or a killable process, every call with a deadline.

Executors, `check`, `play` and the Gymnasium adapter all go through here, so that an environment behaves the same
wherever it runs. What the environment returns is checked, never repaired.
"""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from envhub.environment import Environment, has_oracle
from envhub.errors import DeadlineError, EnvironmentFault, Fault, ModelFault, RewardFault, UserError
from envhub.guard import MAX_REWARD, authors_mistake, converted, described, finite, raised_at, shown, text_of, trace_of
from envhub.limits import Limits
from envhub.messages import Action, Observation
from envhub.offload import ProcessHost, ThreadHost
from envhub.rewards import Rubric
from envhub.specs import EnvironmentSpec
from envhub.task_host import TaskHost
from envhub.tasks import Task, TaskSet

_MAKE_SECONDS = 120.0
_MAX_CHARACTERS = 4_000_000
_MAX_MESSAGES = 10_000
_PLAIN_FAULTS = (DeadlineError, ModelFault, EnvironmentFault)
_BOUND = f" within ±{MAX_REWARD:g}"


@dataclass(frozen=True, slots=True)
class StepResult:
    """A checked result of `step`. `components` are the finite numbers of `info["components"]` by name."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)
    components: Mapping[str, float] = field(default_factory=dict)


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
        self.step_seconds = step_seconds
        # The configuration is checked here in any case, so that a mistake in it is the user's and not a fault.
        with self._own("its constructor"):
            self._environment = self.environment_class(self.config) if environment is None else environment
        self._process = ProcessHost(spec.id) if self.isolation == "process" else None
        self._thread: ThreadHost | None = None
        self._task: TaskHost | None = None
        self._made = False

    @property
    def limits(self) -> Limits:
        """The environment's own default limits."""
        return self.environment_class.limits

    @property
    def tasks(self) -> TaskSet:
        """The environment's task set (of an instance in this process: reading tasks runs no episode).

        Raises UserError where it has none.
        """
        with self._own("tasks"):
            found = self._environment.tasks
            if not isinstance(found, TaskSet):
                raise UserError(f"environment {self.spec.id!r}: tasks is a TaskSet, not {shown(found)}")
            return found

    @property
    def rubric(self) -> Rubric | None:
        """The environment's rubric, where it has one."""
        with self._own("rubric"):
            found: Rubric | None = getattr(self._environment, "rubric", None)
            if not (found is None or isinstance(found, Rubric)):
                raise UserError(f"environment {self.spec.id!r}: rubric is a Rubric, not {shown(found)}")
            return found

    @property
    def has_oracle(self) -> bool:
        """Whether the environment names its oracle."""
        return has_oracle(self.environment_class)

    async def reset(self, task: Task, *, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin the episode of a task; its own seed seeds the environment unless `seed` is given."""
        options = {"task": task}
        result = await self._call("reset", seed=task.seed if seed is None else seed, options=options)
        with self._checking("reset"):
            if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
                raise self._fault("reset", f"returned {shown(result)}, not (observation, info)")
            return self._observation("reset", result[0]), dict(result[1])

    async def step(self, action: Action) -> StepResult:
        """Take one step and check what comes back."""
        result = await self._call("step", action)
        with self._checking("step"):
            return self._step_result(result)

    def _step_result(self, result: Any) -> StepResult:
        if not (isinstance(result, tuple) and len(result) == 5):
            raise self._fault(
                "step", f"returned {shown(result)}, not (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = result
        number = finite(reward)
        if number is None:
            raise self._fault("step", f"returned the reward {shown(reward)}, not a finite number{_BOUND}")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool) and type(flag).__name__ not in ("bool_", "bool"):
                raise self._fault("step", f"returned {name}={shown(flag)}, not a bool")
        if not isinstance(info, dict):
            raise self._fault("step", f"returned info {shown(info)}, not a dict")
        return StepResult(
            self._observation("step", observation),
            number,
            bool(terminated),
            bool(truncated),
            dict(info),
            self._components(info),
        )

    async def oracle(self) -> Action | None:
        """The environment's own right action in the present state, None where it knows none."""
        if not self.has_oracle:
            return None
        action = await self._call("oracle")
        try:
            return None if action is None else Action.of(action)
        except TypeError:
            raise self._fault("oracle", f"returned {shown(action)}, not a str, an Action or None") from None

    async def close(self) -> None:
        """Close the environment and free its thread or process. Drops its faults; the second time it does nothing."""
        begun, self._made = self._made, False
        try:
            own = self.environment_class.close is not Environment.close or "close" in vars(self._environment)
            if begun and own and (self._process is None or self._process.alive):
                with contextlib.suppress(Fault):
                    await self.close_environment()
        finally:
            if self._thread is not None:
                self._thread.close()
                self._thread = None
            if self._task is not None:
                self._task.close()
                self._task = None
            if self._process is not None:
                await self._process.kill()

    async def close_environment(self) -> None:
        """Call the environment's own `close` and nothing else. Raises what it does wrong, as an EnvironmentFault."""
        await self._call("close")

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
            method = getattr(self._environment, name)
            return await self._host(method).call(method, *args, deadline=self.step_seconds, what=what, **kwargs)
        except (EnvironmentFault, ModelFault) as problem:
            raise _plain_fault(problem) from problem.__cause__
        except UserError:
            raise
        except Exception as problem:
            raise self._fault(name, f"raised {described(problem)}", problem) from problem

    def _host(self, method: Callable[..., Any]) -> TaskHost | ThreadHost:
        if is_async(method):
            self._task = self._task or TaskHost()
            return self._task
        self._thread = self._thread or ThreadHost(self.spec.id)
        return self._thread

    def _own(self, what: str) -> AbstractContextManager[None]:
        return authors_mistake(f"environment {self.spec.id!r}: {what}")

    def _checking(self, name: str) -> AbstractContextManager[None]:
        """For looking at what a call returned, which may be objects that raise when they are looked at."""
        return converted(lambda problem: self._fault(name, f"returned what raises {described(problem)}", problem))

    def _components(self, info: Mapping[str, Any]) -> dict[str, float]:
        given = info.get("components")
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise self._fault("step", f"returned the components {shown(given)}, not a dict of numbers by name")
        out: dict[str, float] = {}
        for name, value in given.items():
            number = float(value) if isinstance(value, bool) else finite(value)
            if number is None or not isinstance(name, str):
                raise self._fault(
                    "step", f"returned the component {shown(name)} = {shown(value)}, not a finite number{_BOUND}"
                )
            out[name] = number
        return out

    def _observation(self, name: str, value: Any) -> Observation:
        try:
            observation = Observation.of(value)
        except TypeError:
            raise self._fault(
                name,
                "returned as observation "
                f"{shown(value)}: an observation is a str, a Message, a sequence of Messages or an Observation",
            ) from None
        if len(observation.messages) > _MAX_MESSAGES:
            raise self._fault(
                name, f"returned an observation of {len(observation.messages):,} messages; at most {_MAX_MESSAGES:,}"
            )
        characters = sum(len(message.text) for message in observation.messages)
        if characters > _MAX_CHARACTERS:
            raise self._fault(
                name, f"returned an observation of {characters:,} characters; at most {_MAX_CHARACTERS:,}"
            )
        return observation

    def _fault(self, name: str, problem: str, cause: BaseException | None = None) -> EnvironmentFault:
        return EnvironmentFault(f"environment {self.spec.id!r}: {name} {problem}{raised_at(cause)}")


def _plain_fault(problem: EnvironmentFault | ModelFault) -> EnvironmentFault | ModelFault:
    """A fault of one of envhub's own kinds, whose text is a text: a subclass, or its argument, may be anything."""
    if type(problem) in (RewardFault, *_PLAIN_FAULTS) and all(type(item) is str for item in problem.args):
        return problem
    made: EnvironmentFault | ModelFault
    if isinstance(problem, RewardFault):
        name = vars(problem).get("reward")
        made = RewardFault(name if isinstance(name, str) else "unnamed", "")
    else:
        made = next(kind for kind in _PLAIN_FAULTS if isinstance(problem, kind))()
    made.args = (text_of(problem),)
    return made.with_traceback(trace_of(problem))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(function)
