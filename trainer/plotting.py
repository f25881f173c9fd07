"""Curves of one run or several, as a picture."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envhub.errors import UserError, did_you_mean
from envhub.trainer.metrics import Row
from envhub.trainer.text import printable

SHOWN = ("reward", "passed")
SHOWN_SUPERVISED = ("nll", "accuracy")
_LABELS = {
    "reward": "mean reward", "passed": "share passed", "nll": "NLL of a token (nats)", "accuracy": "token accuracy",
}  # fmt: skip
_MARKERS = "os^vD*Xp"


def numbers(rows: Sequence[Row]) -> list[str]:
    """The names of what the rows hold as numbers, in their order: what can be drawn."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value))
    return [name for name in names if name != "step"]


def usual(rows: Sequence[Row]) -> Sequence[str]:
    """What is drawn of the rows where nothing is asked for."""
    if any(row["kind"] in ("train", "eval") for row in rows):
        return SHOWN
    known = numbers(rows)
    return [name for name in SHOWN_SUPERVISED if name in known] or SHOWN_SUPERVISED[:1]


def plot(runs: Mapping[str, Sequence[Row]], path: Path, *, shown: Sequence[str] = SHOWN, title: str = "") -> None:
    """Draw metrics over the training steps of runs, by name, side by side; the ending of `path` is the format.

    Each run has a colour: its training steps, pale as they are and smoothed beside that, and with error bars what was
    evaluated on the held-out tasks of each environment. Raises UserError for a metric that no run has, and for a place that
    cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if path.is_dir() or not path.suffix:
        picture = path / "curve.png" if path.is_dir() else path.with_name(f"{path.name}.png")
        raise UserError(f"{path} names no picture; write for example {picture} (.png, .svg or .pdf)")
    known = numbers([row for rows in runs.values() for row in rows])
    for name in shown:
        if name not in known and known:
            raise UserError(f"no run has the metric {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}")
    figure = Figure(figsize=(4.5 * len(shown), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    figure.suptitle(_literal(title))
    colours = [f"C{number}" for number in range(10)]  # of matplotlib's own cycle
    for panel, name in zip(panels, shown, strict=True):
        for place, (run, rows) in enumerate(runs.items()):
            _draw(panel, rows, name, _literal(run) if len(runs) > 1 else "", colours[place % len(colours)])
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_xlabel("training step")
        panel.set_ylabel(_LABELS.get(name, _literal(name.replace("_", " "))))
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # of a font without the letters of a name
            figure.savefig(path, dpi=130)
    except (OSError, ValueError) as problem:
        raise UserError(f"cannot draw {path}: {problem}") from problem


def _draw(panel: Any, rows: Sequence[Row], name: str, run: str, colour: Any) -> None:
    train = [row for row in rows if row["kind"] in ("train", "sft") and name in row]
    supervised = any(row["kind"] in ("sft", "held_out") for row in rows)
    one, other = (
        ("training samples", "held-out samples") if supervised else ("training rollouts", "held-out tasks (95 %)")
    )
    steps = [row["step"] for row in train]
    values = [row[name] if _is_number(row[name]) else None for row in train]
    if train:
        panel.plot(
            steps, [_or(value, math.nan) for value in values], color=colour, alpha=0.35, label="" if run else one
        )
        panel.plot(steps, smoothed(values), color=colour, label=run or "smoothed")
    by_env: dict[str, list[Row]] = {}
    for row in rows:
        if _is_scored(row) and _is_number(row.get(name)):
            by_env.setdefault(row.get("env", ""), []).append(row)
    for place, (env, held_out) in enumerate(by_env.items()):
        label = f"{run}: held out" if run else other
        panel.errorbar(
            [row["step"] for row in held_out], [row[name] for row in held_out], yerr=_error_bars(held_out, name),
            color=colour if run else f"C{1 + place % 9}", marker=_MARKERS[place % len(_MARKERS)], capsize=3,
            linestyle="--" if run else "-", label=f"{label}, {_literal(env)}" if len(by_env) > 1 else label,
        )  # fmt: skip


def _is_scored(row: Row) -> bool:
    return row["kind"] == "held_out" or (row["kind"] == "eval" and bool(row.get("scored")))


def smoothed(values: Sequence[float | None], weight: float = 0.6) -> list[float]:
    """Exponential smoothing; a step without a value (no rollout was scored) keeps the last one."""
    out: list[float] = []
    for value in values:
        last = out[-1] if out else math.nan
        out.append(last if value is None else value if math.isnan(last) else weight * last + (1 - weight) * value)
    return out


def _error_bars(rows: Sequence[Row], name: str) -> list[list[float]]:
    low = [row[name] - _or(row.get(f"{name}_low"), row[name]) for row in rows]
    high = [_or(row.get(f"{name}_high"), row[name]) - row[name] for row in rows]
    return [low, high]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _literal(text: str) -> str:
    """Text that matplotlib shows as it is: between dollars it would be a formula."""
    return printable(text).replace("$", r"\$")


def _or(value: Any, default: float) -> float:
    return default if value is None else float(value)
