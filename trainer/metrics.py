"""Metrics of a run: JSON lines, TensorBoard and trackers."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from envhub import strict_json
from envhub.errors import DataError, UserError
from envhub.home import write_atomically
from envhub.records import JsonlWriter
from envhub.records.jsonl import is_whole
from envhub.trainer.tracking import Trackers

FILE = "metrics.jsonl"
Row: TypeAlias = Mapping[str, Any]
_NEEDED = {"train": ("reward", "passed"), "eval": ("reward", "passed", "scored"), "sft": ("nll",), "held_out": ("nll",)}
_KEY = ("step", "kind", "env", "when")
_LARGEST = 1e100  # of any number: curves and sums of what is larger would overflow
_DRAWN = ("reward", "reward_low", "reward_high", "passed", "passed_low", "passed_high", "scored", "nll", "accuracy")


class MetricsLog:
    """Appends a row of numbers a step to `metrics.jsonl` and, where asked for, to TensorBoard event files and trackers."""

    def __init__(self, folder: Path, *, tensorboard: bool, trackers: Trackers | None = None) -> None:
        self._writer, self._trackers = JsonlWriter(folder / FILE), trackers or Trackers()
        self._board: Any = None
        self._events = folder / "tensorboard"
        if tensorboard:
            from envhub.trainer.events import EventFile

            with self._writing():
                self._board = EventFile(self._events)

    def write(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Write a row; `kind` is `train`, `eval`, `sft` or `held_out`. Raises UserError.

        Numbers also go to TensorBoard and trackers, as `kind/name`, or `kind/ENVIRONMENT/name` where the row names an
        environment.
        """
        self._writer.write({"step": step, "kind": kind, **{name: _or_null(value) for name, value in values.items()}})
        place = f"{kind}/{values['env']}" if "env" in values else kind
        numbers = {
            f"{place}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        }
        if self._board is not None:
            with self._writing():
                self._board.write(step, numbers)
        self._trackers.write(step, numbers)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise UserError(f"cannot write {self._events}: {problem.strerror or problem}") from problem

    def close(self) -> None:
        """Close the files."""
        self._writer.close()
        if self._board is not None:
            with contextlib.suppress(OSError):  # what was not written was said when it was to be
                self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run. An unfinished last line, which a killed run leaves, is dropped.

    Raises DataError naming file and line for what is no row: an object with a `step` from 0, a `kind`, and numbers.
    """
    return _read(folder / FILE)[0]


def _read(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows, and whether a line that is unfinished follows them."""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise DataError(
            f"{path.parent} is no training run: "
            + (f"it has no {path.name}" if path.parent.is_dir() else "there is no such folder")
        ) from None
    except OSError as problem:
        raise DataError(f"cannot read {path}: {problem.strerror}") from problem
    unfinished = bool(rest.strip()) and not is_whole(rest)
    if not unfinished:
        lines.append(rest)
    rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    return rows, unfinished


def _row(line: bytes, place: str) -> dict[str, Any]:
    remedy = "remove that line to go on without it"
    try:
        row = strict_json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise DataError(f"{place}: not UTF-8; {remedy}") from None
    except ValueError as problem:
        raise DataError(f"{place}: not JSON: {problem}; {remedy}") from None
    if not isinstance(row, dict):
        raise DataError(f"{place}: a row of metrics is an object, not {type(row).__name__}; {remedy}")
    step, kind = row.get("step"), row.get("kind")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise DataError(f"{place}: step is a whole number from 0, not {step!r}; {remedy}")
    if not isinstance(kind, str) or kind not in _NEEDED:
        raise DataError(f"{place}: kind is one of {', '.join(_NEEDED)}, not {kind!r}; {remedy}")
    lacking = [name for name in _NEEDED[kind] if name not in row]
    if lacking:
        raise DataError(f"{place}: a row of kind {kind!r} has {lacking[0]}, and this one has not; {remedy}")
    for name in ("env", "when"):
        if not isinstance(row.get(name, ""), str):
            raise DataError(f"{place}: {name} is text, not {row[name]!r}; {remedy}")
    for name in _DRAWN:
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise DataError(f"{place}: {name} is a number or null, not {value!r}; {remedy}")
    for name, value in row.items():
        if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
            raise DataError(f"{place}: {name} is a number within ±{_LARGEST:g}, and this one is not; {remedy}")
    for name in ("reward", "passed"):
        low, mean, high = (row.get(key) for key in (f"{name}_low", name, f"{name}_high"))
        if mean is not None and ((low is not None and low > mean) or (high is not None and high < mean)):
            raise DataError(f"{place}: {name} {mean:g} is not within its interval; {remedy}")
    return row


def forget_after(folder: Path, step: int) -> str:
    """Drop the rows of steps after `step`, which a resumed run does again, and all but the last of what is the same: step, kind,
    and of an evaluation its environment and moment.

    Returns one line that counts what was dropped, empty where nothing was. Raises DataError as `read_metrics` does.
    """
    path = folder / FILE
    if not path.exists():
        return ""
    rows, unfinished = _read(path)
    earlier = [row for row in rows if row["step"] <= step]
    kept = list({tuple(row.get(name) for name in _KEY): row for row in earlier}.values())
    counts = {
        "{} of steps that are run again": len(rows) - len(earlier),
        "{} doubled": len(earlier) - len(kept),
        "{} unfinished": int(unfinished),
    }
    if not any(counts.values()):
        return ""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
    return f"{FILE}: rows dropped: {', '.join(text.format(count) for text, count in counts.items() if count)}"


def _or_null(value: Any) -> Any:
    """JSON knows no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
