"""Plays any Gymnasium environment: observations as text (and images), actions as text."""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import TimeLimit
from pydantic import Field

from envhub.environment import Environment, EnvironmentConfig, Info, Reset, Step
from envhub.environments.gymnasium_adapter.actions import ActionReader, InvalidAction
from envhub.environments.gymnasium_adapter.rendering import Game, game_of, render_observation
from envhub.errors import MissingExtraError, ModelFault, UserError
from envhub.limits import Limits
from envhub.messages import Action, ActionLike, ImagePart, Message, TextPart
from envhub.specs import load_object
from envhub.tasks import SeedTasks, TaskSet

_SEEDS = 2**31
_MINIGRID_IDS = ("MiniGrid-", "BabyAI-")


class GymnasiumConfig(EnvironmentConfig):
    """What to play and how.

    `id` is a Gymnasium id (`"FrozenLake-v1"`, `"module:Name-v0"` to import the module that registers it) or the place
    of a factory (`"module:function"`), called with `kwargs`. `max_steps` replaces the environment's own time limit.
    `actions` names the actions of a Discrete space; `prompt` goes before the opening message. With `images` the
    environment is rendered as an image too. Up to `invalid_limit` invalid actions in a row are answered; one more ends
    the episode as the model's fault.
    """

    id: str = Field(min_length=1)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    max_steps: int | None = Field(None, ge=1)
    actions: dict[str, int] | None = None
    prompt: str = ""
    images: bool = False
    invalid_limit: int = Field(3, ge=0)


class GymnasiumEnvironment(Environment):
    """A Gymnasium environment as one of ours.

    The opening message tells the rules where they are known, how to write an action, and the first observation. An
    answer that names no action is told so, at no reward and without a step of the environment. The Gymnasium seed is
    the episode's seed modulo 2**31.
    """

    name = "gymnasium"
    Config = GymnasiumConfig
    limits = Limits(max_turns=256, max_turn_tokens=512)

    config: GymnasiumConfig

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None, **overrides: Any) -> None:
        super().__init__(config, **overrides)
        _require_known(self.config.id)
        self._env: gymnasium.Env[Any, Any] | None = None
        self._over = True
        self._invalid_in_a_row = 0

    @functools.cached_property
    def tasks(self) -> TaskSet:
        """Seeds without end, other ones for every `id`."""
        return SeedTasks(f"{self.name}/{self.config.id}")

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Reset:
        """Begin an episode. Raises UserError where the environment cannot be made, MissingExtraError for toy games."""
        if self._env is None:
            self._env = _make(self.config)
            self._game = game_of(self._env)
            names = self._game.actions if self.config.actions is None else self.config.actions
            self._reader = ActionReader(self._env.action_space, names)
        task = (options or {}).get("task")
        if seed is None:
            seed = task.seed if task is not None else self.rng.randrange(_SEEDS)
        observation, info = self._env.reset(seed=seed % _SEEDS)
        self._over, self._invalid_in_a_row = False, 0
        return self._message(self._env, observation, before=self._opening(self._game)), _plain(info)

    def step(self, action: ActionLike) -> Step:
        """Take the action that the text names. Raises ModelFault after too many invalid ones in a row."""
        if self._env is None or self._over:
            raise UserError(f"{self.config.id}: the episode has not begun or is over; reset it before the next step")
        try:
            choice = self._reader.read(Action.of(action).text)
        except InvalidAction as problem:
            return self._answer_invalid(str(problem))
        self._invalid_in_a_row = 0
        observation, reward, terminated, truncated, info = self._env.step(choice)
        self._over = bool(terminated or truncated)
        value = float(np.asarray(reward).item())
        return self._message(self._env, observation), value, bool(terminated), bool(truncated), _plain(info)

    def close(self) -> None:
        """Close the Gymnasium environment."""
        env, self._env, self._over = self._env, None, True
        if env is not None:
            env.close()

    def _opening(self, game: Game) -> str:
        title = f"You play the environment {self.config.id}."
        return "\n\n".join(part for part in (self.config.prompt, title, game.rules, self._reader.instruction) if part)

    def _message(self, env: gymnasium.Env[Any, Any], observation: Any, *, before: str = "") -> Message:
        text = render_observation(env, self._game, observation)
        text = f"{before}\n\n{text}" if before else text
        if not self.config.images:
            return Message("user", text)
        return Message("user", (TextPart(text), _picture(env, self.config.id)))

    def _answer_invalid(self, problem: str) -> Step:
        self._invalid_in_a_row += 1
        if self._invalid_in_a_row > self.config.invalid_limit:
            self._over = True
            raise ModelFault(f"{self._invalid_in_a_row} invalid actions in a row; the last one: {problem}")
        text = f"Invalid action: {problem}. {self._reader.instruction}"
        return Message("user", text), 0.0, False, False, {"invalid_action": problem}


def _is_factory(place: str) -> bool:
    """Whether an id is the place of a function; Gymnasium's own `module:Name-v0` is not."""
    before, separator, name = place.rpartition(":")
    return bool(before and separator) and name.replace(".", "_").isidentifier()


def _require_known(place: str) -> None:
    """Raise UserError, with Gymnasium's own suggestion, for an id that nothing provides."""
    if _is_factory(place):
        if not callable(load_object(place)):
            raise UserError(f"{place} cannot be called to make a Gymnasium environment")
        return
    module, _, name = place.rpartition(":")
    if name.startswith(_MINIGRID_IDS):
        module = "minigrid"
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
    except ImportError as problem:
        if module == "minigrid":
            raise MissingExtraError(f"environment {place!r}", "toys") from problem
        raise UserError(f"cannot import {module!r}, which should register {name!r}: {problem}") from problem
    except gymnasium.error.Error as problem:
        raise UserError(f"Gymnasium has no environment {place!r}: {problem}") from problem


def _make(config: GymnasiumConfig) -> gymnasium.Env[Any, Any]:
    kwargs = dict(config.kwargs)
    if config.images:
        kwargs.setdefault("render_mode", "rgb_array")
    env = _construct(config, kwargs)
    draws = "ansi" in (env.metadata.get("render_modes") or ())
    if draws and "render_mode" not in kwargs and not _is_factory(config.id):
        env.close()
        env = _construct(config, {**kwargs, "render_mode": "ansi"})
    return env


def _construct(config: GymnasiumConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        if not _is_factory(config.id):
            return gymnasium.make(config.id, disable_env_checker=True, max_episode_steps=config.max_steps, **kwargs)
        env = load_object(config.id)(**kwargs)
    except DependencyNotInstalled as problem:
        raise _missing(config.id, problem) from problem
    except (TypeError, ValueError, KeyError, gymnasium.error.Error) as problem:
        raise UserError(f"{config.id} cannot be made with kwargs {kwargs}: {problem}") from problem
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{config.id} made a {type(env).__name__}, not a gymnasium.Env")
    return env if config.max_steps is None else TimeLimit(env, config.max_steps)


def _missing(place: str, problem: DependencyNotInstalled) -> UserError:
    entry = "" if _is_factory(place) else str(gymnasium.spec(place.rpartition(":")[2]).entry_point)
    if entry.startswith(("gymnasium.envs.toy_text", "minigrid")):
        return MissingExtraError(f"environment {place!r}", "toys")
    return UserError(f"environment {place!r}: {problem}")


def _picture(env: gymnasium.Env[Any, Any], place: str) -> ImagePart:
    from PIL import Image

    try:
        frame = env.render()
    except DependencyNotInstalled as problem:
        raise _missing(place, problem) from problem
    if not isinstance(frame, np.ndarray):
        raise UserError(f"{place} does not render as an rgb_array, which images=True needs; set images to false")
    return ImagePart.from_pil(Image.fromarray(frame.astype(np.uint8)))


def _plain(info: Mapping[str, Any]) -> Info:
    """An info dictionary as plain Python values that can be recorded."""
    return {str(key): _plain_value(value) for key, value in info.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, tuple | list):
        return [_plain_value(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
