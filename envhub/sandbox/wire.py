"""Frames and values between the parent and a sandboxed process.

Frames are JSON behind a length of four bytes, big-endian. Values travel as JSON with tags: `{"t": [...]}` is a tuple,
`{"d": [[key, value], ...]}` a dict, `{"f": text}` a float, `{"o": text}` an object of another type.
Imported on both sides, so only the standard library is used, and little of it.
"""

import json

MAX_DEPTH = 100
MAX_INT_BITS = 14_284  # 4300 digits, the limit of CPython's conversion to text


class TooLargeError(ValueError):
    """A value that is over the size, depth or digit limit of a reply."""


class Opaque:
    """What the parent gets for an object whose type cannot travel; equal to nothing but itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def encode(value: object, budget: int, depth: int = 0) -> object:
    """`value` as tagged JSON data, by exact type. Raises `TooLargeError` beyond `budget` bytes or the depth limit."""
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
    if isinstance(value, str | list | tuple | dict) and kind in (str, list, tuple, dict) and len(value) > budget:
        raise TooLargeError("larger than the limit of a result")
    if kind is str:
        return value
    if kind is list:
        return [encode(item, budget, depth + 1) for item in value]  # type: ignore[attr-defined]
    if kind is tuple:
        return {"t": [encode(item, budget, depth + 1) for item in value]}  # type: ignore[attr-defined]
    if kind is dict:
        items = value.items()  # type: ignore[attr-defined]
        return {"d": [[encode(key, budget, depth + 1), encode(item, budget, depth + 1)] for key, item in items]}
    return {"o": f"<{kind.__module__}.{kind.__qualname__} object>"[:200]}


def decode(data: object, depth: int = 0) -> object:
    """The value of tagged JSON data. Raises `ValueError` or `TypeError` for anything `encode` would not write."""
    if depth > 2 * MAX_DEPTH:
        raise TooLargeError("nested too deeply")
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return [decode(item, depth + 1) for item in data]
    if isinstance(data, dict) and len(data) == 1:
        ((tag, body),) = data.items()
        if tag == "f" and isinstance(body, str):
            return float(body)
        if tag == "t" and isinstance(body, list):
            return tuple(decode(item, depth + 1) for item in body)
        if tag == "d" and isinstance(body, list):
            return {decode(key, depth + 1): decode(item, depth + 1) for key, item in body}
        if tag == "o" and isinstance(body, str):
            return Opaque(body[:200])
    raise ValueError("not a value in the tagged form")


def frame(data: object) -> bytes:
    """`data` as one frame."""
    body = json.dumps(data, allow_nan=False).encode("ascii")
    return len(body).to_bytes(4, "big") + body
