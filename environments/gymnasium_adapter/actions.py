"""Gymnasium actions as a model writes them: names and numbers of discrete actions, JSON for every other space."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envhub.errors import UserError
from envhub.spaces import UnicodeText

_NUMBER = r"(?<![\w.+-])[+-]?[0-9]+(?:\.[0-9]+)?(?![\w]|\.[0-9])"
_LAST_LINES = 10
_MOST_BOUNDS = 64
_SUPPORTED = (
    spaces.Discrete,
    spaces.Box,
    spaces.MultiDiscrete,
    spaces.MultiBinary,
    spaces.Text,
    UnicodeText,
)


class InvalidAction(ValueError):
    """The text names no action; the message tells the model why."""


class ActionReader:
    """Reads the actions of one space from text, and says how they are to be written.

    `names` maps names to the actions of a Discrete space. Raises UserError for names that do not fit the space and for
    a space that cannot be written as text.
    """

    def __init__(self, space: gymnasium.Space[Any], names: Mapping[str, int] | None = None) -> None:
        _require_supported(space)
        self._space = space
        self._names = _checked_names(space, names or {})
        words = sorted((re.escape(name) for name in self._names), key=len, reverse=True)
        names_pattern = "".join(rf"|(?<!\w){word}(?!\w)" for word in words)
        self._mention = re.compile(_NUMBER + names_pattern, re.IGNORECASE)
        self._by_name = {name.lower(): number for name, number in self._names.items()}

    @property
    def instruction(self) -> str:
        """How to write an action, for the prompt."""
        if isinstance(self._space, spaces.Discrete):
            if self._names:
                listed = ", ".join(f"{name} ({number})" for name, number in self._names.items())
                return f"The actions are: {listed}. Name one action on the last line of your answer."
            first, last = int(self._space.start), int(self._space.start + self._space.n - 1)
            return f"The actions are the numbers from {first} to {last}. Name one on the last line of your answer."
        if isinstance(self._space, spaces.Text | UnicodeText):
            return f"Your answer is the action: {_describe(self._space)}."
        return f"Write the action as JSON on the last line of your answer: {_describe(self._space)}."

    def read(self, text: str) -> Any:
        """The action that the text names: the last one mentioned. Raises InvalidAction."""
        if isinstance(self._space, spaces.Discrete):
            return self._read_discrete(self._space, text)
        if isinstance(self._space, spaces.Text | UnicodeText):
            return _convert(self._space, text if self._space.contains(text) else text.strip())
        problem: InvalidAction | None = None
        for value in _json_values(text):
            try:
                return _convert(self._space, value)
            except InvalidAction as found:
                problem = problem or found
        raise problem or InvalidAction("there is no JSON in the answer")

    def _read_discrete(self, space: spaces.Discrete, text: str) -> Any:
        for line in reversed(text.splitlines()):
            mentioned = self._mention.findall(line)
            if mentioned:
                word = mentioned[-1]
                named = self._by_name.get(word.lower())
                return _convert(space, _whole(word) if named is None else named)
        raise InvalidAction("the answer names no action")


def _checked_names(space: gymnasium.Space[Any], names: Mapping[str, int]) -> dict[str, int]:
    if names and not isinstance(space, spaces.Discrete):
        raise UserError(f"actions names the actions of a Discrete space; this action space is {space}")
    for name, number in names.items():
        if not name.strip() or name != name.strip() or re.fullmatch(_NUMBER, name):
            raise UserError(f"actions: {name!r} is no name for an action; use a word")
        if not space.contains(number):
            raise UserError(f"actions: {name!r} stands for {number}, which is not in {space}")
    if len({name.lower() for name in names}) < len(names):
        raise UserError("actions: two names differ only in case")
    return dict(names)


def _require_supported(space: gymnasium.Space[Any]) -> None:
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            _require_supported(part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            _require_supported(part)
    elif not isinstance(space, _SUPPORTED):
        raise UserError(
            f"an action space of kind {type(space).__name__} cannot be written as text; wrap the environment so that "
            "its actions are Discrete, MultiDiscrete, MultiBinary, Box, Text, or a Tuple or Dict of these"
        )


def _json_values(text: str) -> Iterator[Any]:
    """The JSON values in the text, the whole text first, then the last lines from the end, then the widest bracket."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for candidate in (text, *reversed(lines[-_LAST_LINES:])):
        yield from _loaded(candidate)
        yield from _loaded(_bracketed(candidate))


def _bracketed(text: str) -> str:
    start = min((at for at in (text.find("["), text.find("{")) if at >= 0), default=0)
    return text[start : max(text.rfind("]"), text.rfind("}")) + 1]


def _loaded(text: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        return


def _convert(space: gymnasium.Space[Any], value: Any) -> Any:
    """The element of the space that a JSON value stands for. Raises InvalidAction."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != {str(key) for key in space.spaces}:
            raise InvalidAction(f"expected {_describe(space)}")
        return {key: _convert(part, value[str(key)]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise InvalidAction(f"expected {_describe(space)}")
        return tuple(_convert(part, item) for part, item in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Text | UnicodeText):
        element: Any = value if isinstance(value, str) else None
    elif isinstance(space, spaces.Discrete):
        whole = isinstance(value, int) and not isinstance(value, bool)
        element = space.dtype.type(value) if whole and 0 <= value - int(space.start) < int(space.n) else None
    else:
        element = _array(space, value)
    if element is None or not space.contains(element):
        raise InvalidAction(f"expected {_describe(space)}")
    return element


def _array(space: Any, value: Any) -> np.ndarray | None:
    """`value` as an array of the space's shape and type, None where it is no such array."""
    if not _is_numeric(value):
        return None
    try:
        numbers = np.array(value, dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    if numbers.shape != space.shape:
        return None
    if np.issubdtype(space.dtype, np.integer):
        info = np.iinfo(space.dtype)
        if np.any(numbers != np.floor(numbers)) or np.any(numbers < info.min) or np.any(numbers > info.max):
            return None
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(numbers.astype(space.dtype))


def _is_numeric(value: Any) -> bool:
    """Whether a JSON value consists of finite numbers and lists of them."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, bool) or not isinstance(item, int | float) or not -math.inf < item < math.inf:
            return False
    return True


def _whole(word: str) -> int | None:
    """The int a word stands for; None for a fraction or a number that no action space can hold."""
    return None if "." in word or len(word) > 18 else int(word)


def _describe(space: gymnasium.Space[Any]) -> str:
    if isinstance(space, spaces.Discrete):
        return f"a whole number from {int(space.start)} to {int(space.start + space.n - 1)}"
    if isinstance(space, spaces.Dict):
        parts = ", ".join(f'"{key}": {_describe(part)}' for key, part in space.spaces.items())
        return f"an object {{{parts}}}"
    if isinstance(space, spaces.Tuple):
        return f"a list of {len(space.spaces)} items [{', '.join(_describe(part) for part in space.spaces)}]"
    if isinstance(space, spaces.MultiBinary):
        return f"a list of shape {list(space.shape)} of zeros and ones"
    if isinstance(space, spaces.MultiDiscrete):
        first, last = space.start, space.start + space.nvec - 1
        return f"a list of shape {list(space.shape)} of whole numbers from {first.tolist()} to {last.tolist()}"
    if isinstance(space, spaces.Box):
        kind = "whole numbers" if np.issubdtype(space.dtype, np.integer) else "numbers"
        what = f"a list of shape {list(space.shape)} of {kind}" if space.shape else f"one of the {kind}"
        return f"{what} from {_bound(space.low)} to {_bound(space.high)}"
    if isinstance(space, spaces.Text):
        return f"a text of {space.min_length} to {space.max_length} of the characters {space.characters}"
    return "a text"


def _bound(values: np.ndarray) -> str:
    """A bound of a box: one number where all are the same, their range where they are many."""
    if np.all(values == values.flat[0]):
        return f"{values.flat[0]:.6g}"
    if values.size > _MOST_BOUNDS:
        return f"bounds that differ by place ({values.min():.6g} to {values.max():.6g})"
    return str(values.tolist())
