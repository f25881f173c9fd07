"""`envhub merge`."""

from pathlib import Path

import click

from envhub.cli.options import require_packages


@click.command(
    help="Merge a LoRA adapter into the model that it was trained beside, and write the whole model.\n\n"
    "SOURCE is a run (of which the newest checkpoint is taken), a checkpoint, or the folder of an adapter. Without OUTPUT, "
    "the model is written beside it, with -merged after its name."
)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("output", required=False, type=click.Path(path_type=Path))
@click.option("--base", metavar="TEXT", help="The base model, where it is no longer where it was.")
def command(source: Path, output: Path | None, base: str | None) -> None:
    require_packages("envhub merge", "torch", "transformers", "peft")
    from envhub.trainer.merging import merge

    click.echo(str(merge(source, output, base=base)))
