"""Observations of Gymnasium environments as text, and what is known about the games that come with Gymnasium."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_MOST_NUMBERS = 256
_MOST_CHARACTERS = 4000
_HIGHLIGHT = re.compile(r"\x1b\[4[0-9](?:;1)?m(.)\x1b\[0m")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAXI_STOPS = ("R", "G", "Y", "B")


@dataclass(frozen=True, slots=True)
class Game:
    """What a model is told about a kind of environment.

    `observe(env, observation)` gives the observation's text; `drawn` says that the environment's own drawing in text
    goes before it.
    """

    rules: str = ""
    actions: Mapping[str, int] = field(default_factory=dict)
    observe: Callable[[gymnasium.Env[Any, Any], Any], str] = lambda env, observation: render_value(observation)
    drawn: bool = True


def game_of(env: gymnasium.Env[Any, Any]) -> Game:
    """The game an environment is: one of those known, else one with neither rules nor text of its own."""
    for cls in type(env.unwrapped).__mro__:
        if cls.__module__.startswith("gymnasium.envs.toy_text.") and cls.__name__ in _TOY_TEXT:
            return _TOY_TEXT[cls.__name__]
        if cls.__module__.startswith("minigrid."):
            return Game(_MINIGRID_RULES, _named_actions(env), _minigrid_text)
    return Game(actions=_named_actions(env))


def render_observation(env: gymnasium.Env[Any, Any], game: Game, observation: Any) -> str:
    """An observation as text, with the environment's own drawing before it where it draws in text."""
    text = game.observe(env, observation)
    if env.render_mode != "ansi" or not game.drawn:
        return text
    drawing = str(env.render())
    if game.rules:
        drawing = _HIGHLIGHT.sub("@", drawing)
    drawing = _ANSI.sub("", drawing).strip("\n")
    return f"{drawing}\n{text}" if text else drawing


def render_value(value: Any) -> str:
    """Any observation in a compact form: strings as they are, small arrays in full, large ones by shape and range."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        return _render_array(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_inline(item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return f"({', '.join(_inline(item) for item in value)})"
    return str(value)[:_MOST_CHARACTERS]


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_inline(item)}" for key, item in value.items()) + "}"
    return render_value(value)


def _render_array(value: np.ndarray) -> str:
    if value.size > _MOST_NUMBERS:
        extent = ""
        if np.issubdtype(value.dtype, np.number):
            extent = f" with values from {value.min():.6g} to {value.max():.6g}"
        return f"{value.dtype} array of shape {list(value.shape)}{extent}"
    return np.array2string(
        value, separator=", ", precision=4, suppress_small=True, max_line_width=120, threshold=_MOST_NUMBERS + 1
    )


def _named_actions(env: gymnasium.Env[Any, Any]) -> dict[str, int]:
    """The names of an environment that keeps its discrete actions as an IntEnum in `actions`."""
    known = getattr(env.unwrapped, "actions", None)
    if not isinstance(env.action_space, spaces.Discrete):
        return {}
    if not (isinstance(known, type) and issubclass(known, IntEnum)):
        return {}
    return {item.name: item.value for item in known if env.action_space.contains(item.value)}


def _frozen_lake_text(env: gymnasium.Env[Any, Any], observation: Any) -> str:
    columns: int = env.unwrapped.ncol  # type: ignore[attr-defined]
    return f"You are at {_place(observation, columns)}."


def _cliff_text(env: gymnasium.Env[Any, Any], observation: Any) -> str:
    return f"You are at {_place(observation, env.unwrapped.shape[1])}."  # type: ignore[attr-defined]


def _place(state: Any, columns: int) -> str:
    row, column = divmod(int(state), columns)
    return f"row {row}, column {column} (both from 0)"


def _taxi_text(env: gymnasium.Env[Any, Any], observation: Any) -> str:
    row, column, passenger, destination = env.unwrapped.decode(int(observation))  # type: ignore[attr-defined]
    where = f"waits at {_TAXI_STOPS[passenger]}" if passenger < len(_TAXI_STOPS) else "is in the taxi"
    return (
        f"The taxi is at row {row}, column {column} (both from 0). The passenger {where} and wants to go to "
        f"{_TAXI_STOPS[destination]}."
    )


def _blackjack_text(env: gymnasium.Env[Any, Any], observation: Any) -> str:
    total, dealer, ace = (int(item) for item in observation)
    return f"Your cards sum to {total}, {'with' if ace else 'without'} a usable ace. The dealer shows {dealer}."


_TOY_TEXT = {
    "FrozenLakeEnv": Game(
        "Walk over the frozen lake to the goal without falling into a hole. S is the start, F ice, H a hole, G the "
        "goal, and @ you. The ice may be slippery: a move may take you to the side instead.",
        {"left": 0, "down": 1, "right": 2, "up": 3},
        _frozen_lake_text,
    ),
    "CliffWalkingEnv": Game(
        "Walk to the target in few steps without stepping off the cliff, which takes you back to the start. x is you, "
        "o a free place, C the cliff, T the target.",
        {"up": 0, "right": 1, "down": 2, "left": 3},
        _cliff_text,
    ),
    "TaxiEnv": Game(
        "Drive the taxi to the passenger, pick the passenger up, drive to the destination and drop the passenger off. "
        "R, G, Y and B are stops, | is a wall, : is passable, and @ is the taxi.",
        {"south": 0, "north": 1, "east": 2, "west": 3, "pickup": 4, "dropoff": 5},
        _taxi_text,
    ),
    "BlackjackEnv": Game(
        "Play a hand of blackjack: come nearer to 21 than the dealer without going over it. An ace counts 1 or 11, "
        "face cards count 10.",
        {"stick": 0, "hit": 1},
        _blackjack_text,
        drawn=False,
    ),
}

_MINIGRID_RULES = (
    "You see a part of a grid world from above, turned so that you face up. A place is two characters: ^^ you (or the "
    "direction you face in), ## a wall, .. free, ?? unseen, GG the goal, ~~ lava; else a thing and its colour: K key, "
    "B ball, X box, D closed door, L locked door, O open door; r red, g green, b blue, p purple, y yellow, e grey. "
    "toggle opens the door or box in front of you, pickup and drop act on the place in front of you."
)
_MINIGRID_CELLS = {0: "??", 1: "..", 2: "##", 3: "..", 8: "GG", 9: "~~"}
_MINIGRID_THINGS = {5: ("K", "key"), 6: ("B", "ball"), 7: ("X", "box")}
_MINIGRID_DOOR, _MINIGRID_AGENT = 4, 10
_MINIGRID_COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
_COLOUR_LETTERS = "rgbpye"
_DOOR_LETTERS = "ODL"
_ARROWS = (">>", "vv", "<<", "^^")


def _minigrid_text(env: gymnasium.Env[Any, Any], observation: Any) -> str:
    """Mission, view and what is carried; any other form of observation as it is."""
    world: Any = env.unwrapped
    image = observation.get("image") if isinstance(observation, Mapping) else None
    view = (world.agent_view_size, world.agent_view_size, 3)
    if not isinstance(image, np.ndarray) or image.shape not in (view, (world.width, world.height, 3)):
        return render_value(observation)
    lines = [f"Mission: {observation['mission']}"] if "mission" in observation else []
    whole_grid = bool(np.any(image[:, :, 0] == _MINIGRID_AGENT))
    cells = [[_minigrid_cell(*image[x, y]) for x in range(image.shape[0])] for y in range(image.shape[1])]
    if not whole_grid:
        kind, colour, _ = image[image.shape[0] // 2, -1]
        cells[-1][image.shape[0] // 2] = "^^"
        if int(kind) in _MINIGRID_THINGS:
            lines.append(f"You carry: {_MINIGRID_COLOURS[colour]} {_MINIGRID_THINGS[int(kind)][1]}")
    return "\n".join([*lines, *(" ".join(row) for row in cells)])


def _minigrid_cell(kind: int, colour: int, state: int) -> str:
    if kind == _MINIGRID_AGENT:
        return _ARROWS[state % 4]
    if kind == _MINIGRID_DOOR:
        return _DOOR_LETTERS[state % 3] + _COLOUR_LETTERS[colour % 6]
    if int(kind) in _MINIGRID_THINGS:
        return _MINIGRID_THINGS[int(kind)][0] + _COLOUR_LETTERS[colour % 6]
    return _MINIGRID_CELLS.get(int(kind), "??")
