"""Small Gymnasium environments for the tests of the adapter."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class EchoEnv(gymnasium.Env[Any, Any]):
    """Takes actions of any space, keeps the last one in `action` and pays a numpy reward of 0.5."""

    def __init__(self, space: gymnasium.Space[Any], observation: Any = "ready") -> None:
        self.action_space = space
        self.observation_space = spaces.Text(1000)
        self.observation = observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation, {"array": np.arange(2), "nested": {"number": np.int64(3), "thing": object}}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(action)
        return f"took {action!r}", np.array([0.5], np.float32), np.False_, np.False_, {}


SPACES: dict[str, gymnasium.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=-1),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "scalar": spaces.Box(0.0, 1.0, (), np.float32),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "wide": spaces.Box(np.array([0.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,)))),
    "dict": spaces.Dict({"move": spaces.Discrete(2), "say": spaces.Text(5)}),
    "text": spaces.Text(5),
    "graph": spaces.Graph(spaces.Discrete(2), None),
}


def echo(space: str, observation: Any = "ready") -> EchoEnv:
    """An EchoEnv by the name of its space."""
    return EchoEnv(SPACES[space], observation)


def arrays() -> EchoEnv:
    """Observations with arrays large and small."""
    observation = {
        "large": np.zeros((20, 20), np.uint8),
        "pair": (np.float32(0.123456789), 3),
        "small": np.array([1.5, -2.0]),
    }
    return EchoEnv(SPACES["discrete"], observation)


class CrashingEnv(EchoEnv):
    """Fails in every step."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        raise RuntimeError("the world broke")


def crashing() -> CrashingEnv:
    """A CrashingEnv."""
    return CrashingEnv(SPACES["discrete"])


def nothing() -> None:
    """No environment at all."""


NOT_CALLABLE = 3
