"""Tables of evaluations."""

import sys
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from envhub.console import SturdyConsole
from envhub.outcome import Outcome

if TYPE_CHECKING:
    from envhub.agents.evaluation import Comparison, Summary


_WIDEST = 10_000  # columns of a file or a pipe, where nothing is folded


def show(*parts: RenderableType, markup: bool = False) -> None:
    """Print to stdout, with rich's markup or as it is; where that is no terminal, nothing is folded and no line is filled up with blanks."""
    if sys.stdout.isatty():
        SturdyConsole(highlight=False).print(*parts, sep="\n", markup=markup)
        return
    console = SturdyConsole(highlight=False, width=_WIDEST)
    with console.capture() as captured:
        console.print(*parts, sep="\n", markup=markup)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_summary(summary: "Summary", title: str) -> None:
    """Print an evaluation; every rate says what it is divided by."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False, padding=(0, 2))
    scored = f"of {summary.scored} scored rollouts"
    table.add_row("reward", str(summary.reward), f"mean {scored}, 95 % interval by task")
    table.add_row("passed", str(summary.passed), f"share {scored}, 95 % interval by task")
    for k, value in summary.pass_at.items():
        table.add_row(
            f"pass@{k}", f"{value:.3f}", f"of {summary.pass_at_tasks[k]} tasks with at least {k} scored samples"
        )
    for name, value in summary.components.items():
        table.add_row(f"  {name}", f"{value:.3f}", f"component, mean {scored}")
    table.add_row("turns", f"{summary.turns:.1f}", f"mean {scored}")
    table.add_row("tokens", f"{summary.action_tokens:.0f}", f"sampled, mean {scored}")
    for name, count in sorted(summary.outcomes.items()):
        table.add_row(name, str(count), f"of {summary.rollouts} rollouts")
    for name, count in sorted(summary.faults.items()):
        table.add_row(f"fault: {name}", str(count), f"of {summary.rollouts} rollouts; not counted in any rate")
    show(table)
    for kind, error in sorted(summary.first_errors.items()):
        count = summary.faults.get(kind) or summary.outcomes.get(Outcome.MODEL_FAULT.value, 0)
        print(
            f"fault {kind}: {count} of {summary.rollouts} rollouts; "
            f"the first, of task {error.task}, sample {error.member}: {error.text}"
        )


def print_comparison(comparison: "Comparison", first: str, second: str) -> None:
    """Print two evaluations side by side."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_row("first", f"{comparison.first:.3f}", first)
    table.add_row("second", f"{comparison.second:.3f}", second)
    verdict = "clear" if comparison.clear else "not clear: the interval holds 0"
    table.add_row(
        "difference", str(comparison.difference), f"second - first over {comparison.tasks} shared tasks; {verdict}"
    )
    show(table)
