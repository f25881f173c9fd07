"""`envhub sft`."""

from typing import Any

import click

from envhub import task_host
from envhub.strict_json import dumps


def _options() -> list[click.Parameter]:
    from envhub.cli.options import options_of
    from envhub.trainer.sft.config import SftConfig

    return options_of(SftConfig)


def _callback(dry_run: bool, **values: Any) -> int:
    from envhub.cli.options import given, require_packages

    require_packages("envhub sft", "torch", "transformers")
    from envhub.trainer.sft.config import SftConfig, resolve

    config = resolve(given(SftConfig, values))
    from envhub.trainer.sft.run import fine_tune, plan

    if dry_run:
        planned, _, _ = task_host.run(plan(config))
        click.echo(dumps(config.model_dump(mode="json"), indent=2))
        click.echo(str(planned), err=True)
        return 0
    folder = task_host.run(fine_tune(config))
    click.echo(f"done: {folder} (curve.png, metrics.jsonl, checkpoints/)")
    return 0


command = click.Command(
    "sft",
    callback=_callback,
    help="Train a model on conversations, on what an environment's oracle does, or on recorded rollouts.",
    params=[
        *_options(),
        click.Option(["--dry-run"], is_flag=True, help="make the samples, print the configuration, and stop"),
    ],
)
