"""Gymnasium interoperability in both directions.

`as_gymnasium` makes a synchronous Gymnasium environment of one of ours; `from_gymnasium` gives the spec of an
environment of ours around any Gymnasium environment.
"""

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from envhub.driver import Driver, StepResult
from envhub.environment import Environment
from envhub.errors import Fault, ModelFault, UserError, did_you_mean
from envhub.messages import Action, ActionLike, Observation
from envhub.specs import EnvironmentSpec, load_object
from envhub.tasks import TRAIN, Task

T = TypeVar("T")

_ADAPTER = "envhub.environments.gymnasium_adapter.environment:GymnasiumEnvironment"
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz0123456789"))
_RENDER_MODES = ("ansi",)
_RESET_OPTIONS = ("split", "task")


class UnicodeText(gymnasium.Space[str]):
    """The space of every str. Samples are one to eight short words of ASCII letters and digits."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(dtype=np.str_, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text of any length has no box."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A random text. Raises ValueError when a mask or probabilities are given: the space has none."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText samples without mask and without probability")
        lengths = self.np_random.integers(1, 9, size=self.np_random.integers(1, 9))
        return " ".join("".join(self.np_random.choice(_LETTERS, size=length)) for length in lengths)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a str."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText)

    def __repr__(self) -> str:
        return "UnicodeText()"


def as_gymnasium(
    environment: Environment | type[Environment] | EnvironmentSpec, *, render_mode: str | None = None
) -> "GymnasiumView":
    """A Gymnasium environment around an instance, a class or a spec of ours; see `GymnasiumView`.

    Raises UserError for a render mode other than None and "ansi", for anything that is no environment, and for a
    configuration that does not fit.
    """
    return GymnasiumView(environment, render_mode=render_mode)


def from_gymnasium(
    id_or_factory: str | Callable[..., gymnasium.Env[Any, Any]], *, name: str | None = None, **config: Any
) -> EnvironmentSpec:
    """The spec of an environment that plays a Gymnasium environment.

    `id_or_factory` is a Gymnasium id (`"FrozenLake-v1"`), the place of a factory (`"module:function"`), or the factory
    itself, which must be importable by that place. `config` holds keys of the adapter's configuration (`kwargs`,
    `max_steps`, `actions`, `images`, …). `name` is the spec's id; by default it is the Gymnasium id or the factory's
    name. Raises UserError for a factory that cannot be imported by name.
    """
    if isinstance(id_or_factory, str):
        place, default = id_or_factory, id_or_factory.rpartition(":")[2]
    elif callable(id_or_factory):
        place = _place_of(id_or_factory)
        default = place.rpartition(":")[2]
    else:
        raise UserError(f"from_gymnasium takes an id or a factory, not {type(id_or_factory).__name__}")
    return EnvironmentSpec(name or default, _ADAPTER, {**config, "id": place})


class GymnasiumView(gymnasium.Env[str, ActionLike]):
    """One of our environments seen as a Gymnasium environment: texts in, texts out.

    An observation is the text of the new messages; `info["messages"]` holds these messages in OpenAI's form and
    `info["tools"]` the tools on offer, where there are any. An action is a str, or an `envhub.Action` to hand over
    parsed tool calls. The task is drawn by `np_random`, so the same seed gives the same episode;
    `reset(options={"task": …})` plays a given task and `{"split": …}` draws from another split than train.

    The environment's own limits hold: its `max_turns` truncates; its `step_seconds`, or those given, are the deadline of
    a call. A `ModelFault` ends the episode with reward 0 and `info["model_fault"]`; other faults are raised, after which
    `reset` begins anew.

    All calls run in one thread of its own with an event loop, so it works inside a running loop too; `close` ends it.
    """

    metadata: dict[str, Any] = {"render_modes": list(_RENDER_MODES), "render_fps": 1}  # noqa: RUF012  (as Gymnasium)

    def __init__(
        self,
        environment: Environment | type[Environment] | EnvironmentSpec,
        *,
        render_mode: str | None = None,
        step_seconds: float | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in _RENDER_MODES:
            hint = did_you_mean(render_mode, _RENDER_MODES)
            raise UserError(f"as_gymnasium renders as 'ansi' or not at all (None), not as {render_mode!r}{hint}")
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._given = environment
        self._seconds = step_seconds
        self._driver: Driver | None = self._make_driver()
        self._limits = self._driver.limits
        self._tasks = self._driver.tasks
        self._loop = _LoopThread(f"as_gymnasium-{self._driver.spec.id}")
        self._release = weakref.finalize(self, self._loop.stop)
        self._playing = self._closed = False
        self._turns = 0
        self._tools: list[dict[str, Any]] | None = None
        self._transcript: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; returns the observation and the info dictionary.

        Raises UserError for unknown options, ClosedEnvironmentError after `close`, and the environment's faults.
        """
        self._require_open("reset")
        super().reset(seed=seed)
        task = self._draw(options or {})
        if self._driver is None:
            self._driver = self._make_driver()
        self._playing, self._turns, self._tools, self._transcript = False, 0, None, []
        observation, info = self._run(self._driver.reset(task))
        self._playing = True
        return self._take(observation, info)

    def step(self, action: ActionLike) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one step; returns observation, reward, terminated, truncated and info.

        Raises ResetNeeded before `reset` and after the episode's end, ClosedEnvironmentError after `close`, UserError
        for an action that is neither a str nor an Action, and the environment's faults.
        """
        self._require_open("step")
        if not self._playing or self._driver is None:
            raise ResetNeeded("the episode has not begun or is over; call reset() before step()")
        if not isinstance(action, str | Action):
            raise UserError(f"an action is a str or an envhub.Action, not {type(action).__name__}")
        taken = Action.of(str(action) if isinstance(action, str) else action)
        self._transcript.append(f"assistant: {taken.text}")
        self._turns += 1
        try:
            result = self._run(self._driver.step(taken))
        except ModelFault as fault:
            result = StepResult(Observation(), 0.0, True, False, {"model_fault": str(fault)})
        out_of_turns = self._turns >= self._limits.max_turns and not result.terminated
        truncated = result.truncated or out_of_turns
        self._playing = not (result.terminated or truncated)
        text, info = self._take(result.observation, result.info)
        return text, result.reward, result.terminated, truncated, info

    def render(self) -> str | None:
        """The conversation so far with render mode "ansi", else None."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the environment and end its thread. The second time it does nothing."""
        if self._closed:
            return
        self._closed, self._playing = True, False
        try:
            if self._driver is not None:
                self._loop.run(self._driver.close())
        finally:
            self._driver = None
            self._release()

    def _make_driver(self) -> Driver:
        given = self._given
        if isinstance(given, EnvironmentSpec):
            return self._timed(Driver(given))
        cls = type(given) if isinstance(given, Environment) else given
        if not (inspect.isclass(cls) and issubclass(cls, Environment)):
            raise UserError(f"as_gymnasium takes an Environment, its class or an EnvironmentSpec, not {given!r:.80}")
        config = given.config.model_dump() if isinstance(given, Environment) else {}
        spec = _LoadedSpec(cls.name, f"{cls.__module__}:{cls.__qualname__}", config, environment_class=cls)
        instance = given if isinstance(given, Environment) else None  # whatever state its author gave it
        return self._timed(Driver(spec, environment=instance))

    def _timed(self, driver: Driver) -> Driver:
        driver.step_seconds = driver.limits.step_seconds if self._seconds is None else self._seconds
        return driver

    def _draw(self, options: Mapping[str, Any]) -> Task:
        for key in options:
            if key not in _RESET_OPTIONS:
                hint = did_you_mean(key, _RESET_OPTIONS)
                raise UserError(f"reset takes the options {', '.join(_RESET_OPTIONS)}, not {key!r}{hint}")
        given, split = options.get("task"), options.get("split")
        if given is not None:
            if not isinstance(given, Task) or split is not None:
                raise UserError("the option 'task' is an envhub.Task, given without a split")
            return given
        if split is None:
            split = TRAIN if TRAIN in self._tasks.splits else self._tasks.splits[0]
        data_seed = int(self.np_random.integers(2**31))
        size = self._tasks.size(split) if split in self._tasks.splits else None
        return self._tasks.get(split, 0 if size is None else int(self.np_random.integers(size)), data_seed)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call of the driver; where it fails other than by the model's fault, the next reset begins anew."""
        try:
            return self._loop.run(call)
        except ModelFault:
            raise
        except (Fault, UserError):
            self._playing, driver, self._driver = False, self._driver, None
            if driver is not None:
                self._loop.run(driver.close())
            raise

    def _take(self, observation: Observation, info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        if observation.tools is not None:
            self._tools = [tool.to_openai() for tool in observation.tools]
        self._transcript.extend(f"{message.role}: {message.text}" for message in observation.messages)
        out = _fresh({**info, "messages": [message.to_dict() for message in observation.messages]})
        if self._tools:
            out["tools"] = _fresh(self._tools)
        return observation.text, out

    def _require_open(self, method: str) -> None:
        if self._closed:
            raise ClosedEnvironmentError(f"{method}() of an environment that is closed; make a new one")


@dataclass(frozen=True, slots=True)
class _LoadedSpec(EnvironmentSpec):
    """A spec of a class that is at hand, which may be one that cannot be imported by name."""

    environment_class: type[Environment] = Environment

    def load(self) -> type[Environment]:
        return self.environment_class


class _LoopThread:
    """An event loop in a daemon thread, started by the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result. An interrupt of the caller cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread; safe to call from a finaliser in any thread."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(timeout=10.0)

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in (left := asyncio.all_tasks(loop)):
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _place_of(factory: Callable[..., Any]) -> str:
    """`"module:qualname"` of a factory, checked to lead back to it."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    place = f"{module}:{name}"
    try:
        found = load_object(place) if module and name and "<" not in name else None
    except UserError:
        found = None
    if found is not factory:
        label = name or type(factory).__name__
        raise UserError(
            f"from_gymnasium: the factory {label!r} cannot be imported by name; define it at the top of a module, "
            "and hand over its arguments as kwargs={…}"
        )
    return place


def _fresh(value: Any) -> Any:
    """A copy of the containers in `value`: what is returned once is never changed by a later call."""
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_fresh(item) for item in value)
    return value.copy() if isinstance(value, np.ndarray) else value
