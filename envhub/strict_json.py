"""JSON as the standard has it, for what people write and other programs read: no NaN, and nothing that breaks a parser."""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from envhub.errors import DataError

MAX_DEPTH = 100


class NotJsonError(ValueError):
    """JSON by its look that cannot be used: it has NaN, a key twice, deep nesting, or an enormous number."""


def loads(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises json.JSONDecodeError for what is no JSON, and NotJsonError, saying what it is, for NaN, infinities and numbers
    that would become one (1e999), a key that an object has twice, lists and objects that are nested more than 100 deep,
    and whole numbers of more digits than Python reads. Both are ValueErrors, as is the UnicodeDecodeError of bytes that
    are no text.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unambiguous)
    except RecursionError:
        raise NotJsonError(f"nested more than {MAX_DEPTH} deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError, NotJsonError):
        raise
    except ValueError:  # Python's own limit on the digits of a number
        raise NotJsonError("a whole number of thousands of digits") from None
    _check(value)
    return value


def read_line(line: bytes, place: str, *, first: bool = False) -> Any:
    """The value of a line of a JSON-lines file, of which the first may begin with a byte order mark.

    Raises DataError that begins with `place` for what is not UTF-8 or not JSON.
    """
    try:
        return loads(line.decode("utf-8-sig" if first else "utf-8"))
    except UnicodeDecodeError as problem:
        raise DataError(f"{place}: not UTF-8 (byte {problem.start}); save the file as UTF-8") from None
    except NotJsonError as problem:
        raise DataError(f"{place}: {problem}") from None
    except ValueError as problem:
        raise DataError(f"{place}: not JSON: {problem}") from None


def dumps(value: Any, *, indent: int | None = None) -> str:
    """A JSON text. NaN and infinities become the texts "NaN", "Infinity" and "-Infinity", other objects their str."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, default=str)


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values, for `json.loads`. Raises NotJsonError for a key that is there twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for position, (key, _) in enumerate(pairs) if key in dict(pairs[:position]))
        raise NotJsonError(f"an object with the key {twice!r} twice")
    return made


def _refuse(constant: str) -> NoReturn:
    raise NotJsonError(f"{constant} is no JSON")


def _check(value: Any) -> None:
    """Raise NotJsonError for deep nesting and infinities. Level by level, at the speed of C over long lists of numbers."""
    level: list[Collection[Any]] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Collection[Any]] = []
        for items in level:
            kinds = set(map(type, items))
            if float in kinds and any(map(math.isinf, items if len(kinds) == 1 else _floats(items))):
                raise NotJsonError("a number beyond the range of floating point")
            if dict in kinds or list in kinds:
                inner += [
                    item.values() if isinstance(item, dict) else item for item in items if isinstance(item, dict | list)
                ]
        if not inner:
            return
        level = inner
    raise NotJsonError(f"nested more than {MAX_DEPTH} deep")


def _floats(items: Collection[Any]) -> Iterator[float]:
    return (item for item in items if isinstance(item, float))


def named(value: float) -> str:
    """The text that stands for a number that is not finite: "NaN", "Infinity" or "-Infinity"."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return named(value)
    return value
