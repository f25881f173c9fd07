"""`envhub plot`."""

from pathlib import Path

import click

from envhub.cli.options import require_packages
from envhub.errors import UserError


@click.command(
    help="Draw the curves of one training run, or of several beside each other, as a picture. "
    "Lines are smoothed; the pale ones beside them are what was measured.\n\n"
    "Without --output, one run is drawn into its own folder as curve.png, several into curves.png here."
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--metric",
    "-m",
    multiple=True,
    help="What to draw; may be given again. [default: reward and passed; of supervised runs nll and accuracy]",
)
@click.option("--output", type=click.Path(path_type=Path), help="The picture: .png, .svg or .pdf.")
@click.option(
    "--list", "lists", is_flag=True, help="Print the names of the metrics that the runs have, and draw nothing."
)
def command(runs: tuple[Path, ...], metric: tuple[str, ...], output: Path | None, lists: bool) -> None:
    require_packages("envhub plot", "matplotlib")
    from envhub.trainer.metrics import read_metrics
    from envhub.trainer.plotting import numbers, plot, usual
    from envhub.trainer.text import printable

    names = [str(run) for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is given twice; give each run once")
    read = {str(run): read_metrics(run) for run in runs}
    if lists:
        click.echo("\n".join(map(printable, numbers([row for rows in read.values() for row in rows]))))
        return
    empty = next((name for name, rows in read.items() if not rows), None)
    if empty is not None:
        raise UserError(f"{empty} has no metrics yet: nothing to draw")
    target = output or (runs[0] / "curve.png" if len(runs) == 1 else Path("curves.png"))
    shown = metric or usual([row for rows in read.values() for row in rows])
    plot(
        read,
        target,
        shown=shown,
        title=names[0] if len(runs) == 1 else "",
    )
    click.echo(str(target))
    for name, rows in read.items():
        if not set(shown) & set(numbers(rows)):
            click.echo(
                f"{name} has none of {', '.join(shown)} and is not in it; envhub plot --list shows what it has",
                err=True,
            )
