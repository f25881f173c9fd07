"""Rollouts as JSON lines."""

import contextlib
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envhub.errors import DataError, UserError
from envhub.guard import described, is_interruption, text_of
from envhub.home import write_atomically
from envhub.records.closing import Closing
from envhub.rollout import Rollout
from envhub.strict_json import NotJsonError, loads, named

_BLOCK = 1 << 16
_DEPTH = 64
_INTEGER_BITS = 10_000


class JsonlWriter(Closing):
    """Appends one JSON object a line; each line is complete in the file when `write` returns.

    A last line that an earlier process left unfinished is cut off when the file is opened; `cut` says whether. One that is
    whole but for its newline is kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.cut = _ended(path)
            self._file = path.open("ab", buffering=0)  # nothing is left over for `close`, which then cannot fail
        except OSError as problem:
            raise UserError(f"cannot write {path}: {problem.strerror}") from problem

    def write(self, value: dict[str, Any]) -> None:
        """Append an object. Raises UserError when the disk is full or the file cannot be written; it is as before then."""
        line, end = memoryview(encode(value) + b"\n"), self._file.tell()
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as problem:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise UserError(f"cannot write {self.path}: {problem.strerror}") from problem

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def encode(value: dict[str, Any]) -> bytes:
    """JSON in UTF-8, as `envhub.strict_json.loads` reads it; what was read is written as the same bytes again.

    What JSON has no form for becomes text, so that no `info` of an environment can stop a run: other objects, keys that
    are no text (with an apostrophe where there is such a key), NaN and infinities ("NaN", "Infinity", "-Infinity"), whole
    numbers of more than 10,000 bits, what holds itself, and what is nested more than 64 deep. Tuples become lists, and the
    two halves of a surrogate pair the character that they stand for.
    """
    plain = _plain(value)
    try:
        return json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8, but an escape
        return json.dumps(plain).encode()


def _plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    try:
        return _converted(value, above)
    except BaseException as problem:  # objects may raise anything when they are looked at
        if is_interruption(problem):
            raise
        return f"<cannot be looked at: {described(problem)}>"


def _converted(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _joined(value)
    if isinstance(value, int):
        bits = int.bit_length(value)
        return value if bits <= _INTEGER_BITS else f"<int: of {bits} bits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else named(value)
    if not isinstance(value, dict | list | tuple | Mapping):
        return _joined(text_of(value))
    if id(value) in above:
        return f"<{type(value).__name__}: holds itself>"
    if len(above) >= _DEPTH:
        return f"<{type(value).__name__}: nested more than {_DEPTH} deep>"
    path = (*above, id(value))
    if isinstance(value, list | tuple):
        return value if _are_numbers(value) else [_plain(item, path) for item in value]
    out: dict[str, Any] = {}
    for key, item in value.items():
        name = _joined(key if isinstance(key, str) else text_of(key))
        while name in out:
            name += "'"
        out[name] = _plain(item, path)
    return out


def _are_numbers(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether these are numbers that JSON has, all floats or all whole: told at the speed of C, for lists of tokens."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return math.isfinite(sum(values))
    return kinds == {int} and max(map(int.bit_length, values)) <= _INTEGER_BITS


def _joined(text: str) -> str:
    """The text with every two halves of a surrogate pair made one character, as a reader of JSON does."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _ended(path: Path) -> bool:
    """Make a file end with a newline; returns whether an unfinished line had to go."""
    if not path.is_file():
        return False
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end == size:
            return False
        file.seek(end)
        if is_whole(file.read()):
            file.write(b"\n")
            return False
        file.truncate(end)
        return True


def is_whole(line: bytes) -> bool:
    """Whether the last line of a file is an object to its end, so that nothing but its newline can be missing."""
    try:
        return isinstance(loads(line.decode("utf-8-sig")), dict)
    except NotJsonError:  # who reads it says what is wrong with it
        return True
    except ValueError:
        return False


def write_rollouts(path: Path, rollouts: Iterable[Rollout]) -> int:
    """Write rollouts to a new JSON-lines file (an existing one is replaced); returns how many. Raises UserError."""
    count = 0
    try:
        path.unlink(missing_ok=True)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}") from problem
    with JsonlWriter(path) as writer:
        for rollout in rollouts:
            writer.write(rollout.to_dict())
            count += 1
    return count


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """The rollouts of a JSON-lines file; blank lines are passed over.

    Raises DataError naming the file and the line, and where it can be said the field, for what is no rollout record.
    """
    return (rollout for _, rollout in numbered_rollouts(path))


def numbered_rollouts(path: Path) -> Iterator[tuple[int, Rollout]]:
    """The rollouts of a JSON-lines file with the numbers of their lines, from 1; else as `read_rollouts`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as problem:
                    raise DataError(f"{path}, line {number}: not UTF-8 (byte {problem.start})") from None
                try:
                    yield number, read_record(text)
                except ValueError as problem:
                    raise DataError(f"{path}, line {number}: no rollout record: {problem}") from None
    except OSError as problem:
        raise DataError(f"cannot read {path}: {problem.strerror}") from problem


def drop_lines(path: Path, numbers: Collection[int]) -> None:
    """Take lines out of a file, by their numbers from 1; the others stay as they are. Raises UserError."""
    try:
        with path.open("rb") as file:
            kept = [line for number, line in enumerate(file, start=1) if number not in numbers]
    except OSError as problem:
        raise UserError(f"cannot read {path}: {problem.strerror}") from problem
    write_atomically(path, b"".join(kept).decode())


def read_record(text: str) -> Rollout:
    """The rollout of one record. Raises ValueError saying what is wrong with it, and with which field."""
    return Rollout.from_dict(loads(text))
