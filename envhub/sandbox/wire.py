"""Frames and values between the parent and a sandboxed process.

Frames are JSON behind a length of four bytes, big-endian. Values travel as JSON with tags: `{"t": [...]}` is a tuple,
`{"s": [...]}` a set, `{"z": [...]}` a frozenset, `{"d": [[key, value], ...]}` a dict, `{"f": text}` a float,
`{"c": [real, imaginary]}` a complex number, `{"b": hex}` bytes, `{"g": [start, stop, step]}` a range, `{"o": text}` an
object of another type, and `{"h": number}` stands for an object that the process of the submission keeps.
Imported on both sides, so only the standard library is used, and little of it.
"""

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable

MAX_DEPTH = 100
MAX_INT_BITS = 14_284  # 4300 digits, the limit of CPython's conversion to text
_SEQUENCES: "dict[type, str]" = {tuple: "t", set: "s", frozenset: "z"}
_DICTS = (dict, Counter, OrderedDict, defaultdict)  # Python holds them all equal to a dict of the same items


_MOST_COLLISIONS = 64


class TooLargeError(ValueError):
    """A value that is over the size, depth or digit limit of a reply."""


class Opaque:
    """What the parent gets for an object whose type cannot travel; equal to nothing but itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Handle:
    """Stands for an object that the process of the submission keeps; equal to nothing but itself."""

    number: int

    def __init__(self, number: int) -> None:
        self.__dict__["number"] = number


def _opaque(value: object) -> object:
    kind = type(value)
    return {"o": f"<{kind.__module__}.{kind.__qualname__} object>"[:200]}


def refuse_collisions(keys: "list[object]") -> None:
    """Raise `TooLargeError` for keys of which many have one hash: a table of them takes time that grows with their square."""
    seen: dict[int, int] = {}
    for key in keys:
        number = hash(key)
        seen[number] = seen.get(number, 0) + 1
    if seen and max(seen.values()) > _MOST_COLLISIONS:
        raise TooLargeError(f"more than {_MOST_COLLISIONS} keys of the same hash")


def encode(value: object, budget: int, depth: int = 0, other: "Callable[[object], object]" = _opaque) -> object:
    """`value` as tagged JSON data, by exact type; `other` gives the data for objects of types that cannot travel.

    Raises `TooLargeError` beyond `budget` bytes or the depth limit.
    """
    if depth > MAX_DEPTH:
        raise TooLargeError("nested too deeply")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if int.bit_length(value) > MAX_INT_BITS:  # type: ignore[arg-type]
            raise TooLargeError("an integer of more than 4300 digits")
        return value
    if kind is float:
        return {"f": float.__repr__(value)}
    if kind is complex:
        return {"c": [float.__repr__(value.real), float.__repr__(value.imag)]}  # type: ignore[attr-defined]
    if kind in (str, bytes, list, *_SEQUENCES, *_DICTS) and len(value) > budget:  # type: ignore[arg-type]
        raise TooLargeError("larger than the limit of a result")
    if kind is str:
        return value
    if isinstance(value, range):  # has no subclasses
        return {"g": [encode(part, budget) for part in (value.start, value.stop, value.step)]}
    if kind is bytes:
        return {"b": value.hex()}  # type: ignore[attr-defined]
    if kind is list or kind in _SEQUENCES:
        items = [encode(item, budget, depth + 1, other) for item in value]  # type: ignore[attr-defined]
        return items if kind is list else {_SEQUENCES[kind]: items}
    if kind in _DICTS:
        pairs: Iterable[tuple[object, object]] = dict.items(value)  # type: ignore[arg-type]
        return {"d": [[encode(item, budget, depth + 1, other) for item in pair] for pair in pairs]}
    return other(value)


def decode(data: object, depth: int = 0, handle: "Callable[[int], object]" = Handle) -> object:
    """The value of tagged JSON data; `handle` gives the object for the number of one that the submission keeps.

    Raises `ValueError` or `TypeError` for anything `encode` would not write.
    """
    if depth > 2 * MAX_DEPTH:
        raise TooLargeError("nested too deeply")
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return [decode(item, depth + 1, handle) for item in data]
    if isinstance(data, dict) and len(data) == 1:
        ((tag, body),) = data.items()
        match tag, body:
            case "f", str():
                return float(body)
            case "c", [str(real), str(imaginary)]:
                return complex(float(real), float(imaginary))
            case "g", [int(start), int(stop), int(step)]:
                return range(start, stop, step)
            case "b", str():
                return bytes.fromhex(body)
            case "o", str():
                return Opaque(body[:200].encode("utf-8", "replace").decode("utf-8"))
            case "h", int():
                return handle(body)
            case "d", list():
                pairs = [(decode(key, depth + 1, handle), decode(item, depth + 1, handle)) for key, item in body]
                refuse_collisions([key for key, _ in pairs])
                return dict(pairs)
            case "t", list():
                return tuple(decode(item, depth + 1, handle) for item in body)
            case (("s" | "z"), list()):
                items = [decode(item, depth + 1, handle) for item in body]
                refuse_collisions(items)
                return set(items) if tag == "s" else frozenset(items)
    raise ValueError("not a value in the tagged form")


def frame(data: object) -> bytes:
    """`data` as one frame."""
    body = json.dumps(data, allow_nan=False).encode("ascii")
    return len(body).to_bytes(4, "big") + body
