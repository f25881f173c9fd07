"""`envhub compare`."""

from pathlib import Path

import click

from envhub.cli.commands.eval import load_evaluation
from envhub.errors import UserError


@click.command(help="Compare two evaluations on the tasks that both hold, task by task.")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
def command(first: Path, second: Path) -> None:
    from envhub.agents.evaluation import compare
    from envhub.cli.tables import print_comparison

    comparison = compare(load_evaluation(first), load_evaluation(second))
    if not comparison.tasks:
        raise UserError(f"{first} and {second} share no scored task")
    print_comparison(comparison, str(first), str(second))
