"""JSON as the standard has it, for what people write and other programs read: no NaN, and nothing that breaks a parser."""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

MAX_DEPTH = 100


class NotJsonError(ValueError):
    """JSON by its look that cannot be used: it has NaN, a key twice, deep nesting, or an enormous number."""


def loads(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises json.JSONDecodeError for what is no JSON, and NotJsonError, saying what it is, for NaN and infinities, a key
    that an object has twice, lists and objects that are nested more than 100 deep, and whole numbers of more digits than
    Python reads. Both are ValueErrors, as is the UnicodeDecodeError of bytes that are no text.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=unambiguous)
    except RecursionError:
        raise NotJsonError(f"nested more than {MAX_DEPTH} deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError, NotJsonError):
        raise
    except ValueError:  # Python's own limit on the digits of a number
        raise NotJsonError("a whole number of thousands of digits") from None
    if _is_deep(value):
        raise NotJsonError(f"nested more than {MAX_DEPTH} deep")
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """A JSON text. NaN and infinities become the texts "NaN", "Infinity" and "-Infinity", other objects their str."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, default=str)


def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values, for `json.loads`. Raises NotJsonError for a key that is there twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for position, (key, _) in enumerate(pairs) if key in dict(pairs[:position]))
        raise NotJsonError(f"an object with the key {twice!r} twice")
    return made


def _refuse(constant: str) -> NoReturn:
    raise NotJsonError(f"{constant} is no JSON")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = inner
    return any(isinstance(item, dict | list) for item in level)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
