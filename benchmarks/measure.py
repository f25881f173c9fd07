"""What every benchmark shares: rounds in ABBA order, medians, and a table of ratios with an A/A row."""

import json
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Row:
    """One line of a table: a figure, its bar, and whether the bar is met."""

    what: str
    value: float
    unit: str
    bar: str = ""
    met: bool | None = None


Measured: TypeAlias = tuple[list[float], list[float]]


def abba(first: Callable[[], float], second: Callable[[], float], rounds: int) -> Measured:
    """Measure both in the order A B B A, A B B A, … so that a drift of the machine falls on both alike."""
    out: Measured = ([], [])
    for which in (0, 1, 1, 0) * rounds:
        out[which].append((first, second)[which]())
    return out


async def abba_async(
    first: Callable[[], Awaitable[float]], second: Callable[[], Awaitable[float]], rounds: int
) -> Measured:
    """As `abba`, of coroutines."""
    out: Measured = ([], [])
    for which in (0, 1, 1, 0) * rounds:
        out[which].append(await (first, second)[which]())
    return out


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """The median of the pairwise ratios a/b."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def at_most(what: str, value: float, unit: str, bar: float) -> Row:
    """A row whose value must not exceed the bar."""
    return Row(what, value, unit, f"<= {bar:g}", value <= bar)


def at_least(what: str, value: float, unit: str, bar: float) -> Row:
    """A row whose value must reach the bar."""
    return Row(what, value, unit, f">= {bar:g}", value >= bar)


def last_line(module: str, *given: object) -> str:
    """The last line that a module prints, run with these arguments in a process of its own.

    Raises CalledProcessError where it fails, after showing what it wrote as errors.
    """
    done = subprocess.run([sys.executable, "-m", module, *map(str, given)], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        done.check_returncode()
    return (done.stdout.splitlines() or [""])[-1]


def report(title: str, rows: Sequence[Row]) -> int:
    """Print the rows as a Markdown table (or JSON lines with `--json`); 1 where a bar is not met, else 0."""
    if "--json" in sys.argv:
        for row in rows:
            print(json.dumps({"benchmark": title, **asdict(row)}))
    else:
        print(f"### {title}\n\n| what | measured | bar | met |\n|---|---|---|---|")
        for row in rows:
            met = {True: "yes", False: "NO", None: ""}[row.met]
            print(f"| {row.what} | {row.value:.3g} {row.unit} | {row.bar} | {met} |")
        print()
    return int(any(row.met is False for row in rows))
