"""Text of unknown origin made fit for a terminal, and numbers as a curve of one line."""

import math
import unicodedata
from collections.abc import Sequence

from envhub.rollout import Rollout

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-=*#"
_LONGEST = 4_000  # characters that are looked at: more is never shown


def printable(text: str, *, lines: bool = False) -> str:
    """The text with a `·` for each character that moves the cursor, turns the direction or has no form.

    With `lines`, line ends stay. Tabs and other spaces become spaces.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join(char if (lines and char == "\n") or char.isprintable() else _instead(char) for char in text)


def _instead(char: str) -> str:
    return " " if unicodedata.category(char) == "Zs" else "·"


def clipped(text: str, size: int) -> str:
    """Printable text in one line of at most `size` characters."""
    flat = printable(" ".join(text[:_LONGEST].split()))
    return flat if len(flat) <= size else flat[: max(0, size - 1)] + "…"


def middled(text: str, size: int) -> str:
    """As `clipped`, with the middle left out: names that begin and end alike stay apart."""
    flat = printable(" ".join(text[:_LONGEST].split()))
    if len(flat) <= size:
        return flat
    head = max(0, size - 1) // 2
    return f"{flat[:head]}…{flat[len(flat) - max(0, size - 1 - head) :]}"


def sparkline(values: Sequence[float | None], width: int, *, plain: bool = False) -> str:
    """The last values as bars between their lowest and highest, averaged where there are more than `width`.

    What is no finite number is a space. `plain` draws with ASCII.
    """
    bars = _PLAIN_BARS if plain else _BARS
    shown = _fewer([math.nan if value is None else value for value in values], max(1, width))
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    places = (_place(value, low, high, len(bars) - 1) if math.isfinite(value) else None for value in shown)
    return "".join(" " if place is None else bars[place] for place in places)


def chart(values: Sequence[float | None], *, width: int = 60, height: int = 6, plain: bool = False) -> list[str]:
    """The values as columns of `height` lines, with the highest and the lowest value beside them; few are drawn wider.

    Where there are more than `width` they are averaged. What is no finite number is left out. Empty where all are.
    """
    shown = _fewer([math.nan if value is None else value for value in values], width)
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    wide = max(1, min(3, width // len(shown)))
    bars, axis = (_PLAIN_BARS, "|") if plain else (_BARS, "┤")
    levels = len(bars) * height - 1
    columns = [1 + _place(value, low, high, levels) if math.isfinite(value) else 0 for value in shown]
    labels = {0: _shown(high), height - 1: _shown(low)} if high > low else {height - 1: _shown(low)}
    size = max(map(len, labels.values()))
    lines = []
    for line in range(height):
        below = (height - 1 - line) * len(bars)
        cells = (" " if top <= below else bars[min(top - below, len(bars)) - 1] for top in columns)
        lines.append(f"{labels.get(line, ''):>{size}} {axis}{''.join(cell * wide for cell in cells)}".rstrip())
    return lines if high > low else lines[-1:]


def _place(value: float, low: float, high: float, places: int) -> int:
    """Where a value lies between the lowest, 0, and the highest, `places`; halved, so that no difference overflows."""
    span = high / 2 - low / 2
    return round((value / 2 - low / 2) / span * places) if span else 0


def _shown(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def _fewer(values: list[float], width: int) -> list[float]:
    if len(values) <= width:
        return values
    out = []
    for place in range(width):
        part = values[place * len(values) // width : (place + 1) * len(values) // width]
        finite = [value for value in part if math.isfinite(value)]
        out.append(sum(value / len(finite) for value in finite) if finite else math.nan)
    return out


def conversation(rollout: Rollout) -> list[tuple[str, str]]:
    """Role and printable text of every message of a rollout, tool calls as they were written."""
    out: list[tuple[str, str]] = []
    for message in rollout.messages:
        text = message.text[-_LONGEST:]
        for call in message.tool_calls:
            text += f" → {call.name}({call.raw[:_LONGEST]})"
        out.append((message.role, printable(text, lines=True).strip()))
    return out
