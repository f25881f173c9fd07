"""`envhub sft`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envhub import task_host
from envhub.strict_json import dumps

if TYPE_CHECKING:
    from envhub.trainer.sft.config import SftConfig


def _options() -> list[click.Parameter]:
    from envhub.cli.options import options_of
    from envhub.trainer.sft.config import SftConfig

    return options_of(SftConfig)


def _callback(config: Path | None, resume: Path | None, quiet: bool, dry_run: bool, **values: Any) -> int:
    from envhub.cli.options import given, require_packages

    require_packages("envhub sft", "torch", "transformers")
    from envhub.records.folder import CONFIG
    from envhub.trainer.folder import refuse_fixed
    from envhub.trainer.sft.config import CHANGEABLE, SftConfig, resolve
    from envhub.trainer.sft.run import fine_tune, plan, saved_run

    chosen = given(SftConfig, values)
    if resume is not None:
        refuse_fixed(chosen, CHANGEABLE, config)
        saved_run(resume)
        config = resume / CONFIG
    resolved = resolve(chosen, file=config)

    if dry_run:
        planned, _, _ = task_host.run(plan(resolved))
        click.echo(dumps(resolved.model_dump(mode="json"), indent=2))
        click.echo(str(planned), err=True)
        return 0
    from envhub.trainer.live import progress_for

    with progress_for(plain=True, quiet=quiet) as progress:
        folder = task_host.run(fine_tune(resolved, resume=resume, progress=progress))
    played = "rollouts.sqlite, " if (folder / "rollouts.sqlite").exists() else ""
    click.echo(f"done: {folder} (curve.png, metrics.jsonl, {played}checkpoints/)")
    click.echo(what_next(resolved, folder))
    return 0


def what_next(config: "SftConfig", folder: Path) -> str:
    """The command that trains the model of a finished run on an environment, merged first where it is an adapter."""
    run = shlex.quote(str(folder))
    model = shlex.quote(f"{folder}-merged") if config.lora_rank else run
    first = f"envhub merge {run} {model} && " if config.lora_rank else ""
    return f"next: {first}envhub train --env {shlex.quote(config.from_oracle or 'ENVIRONMENT')} --model {model}"


command = click.Command(
    "sft",
    callback=_callback,
    help="Train a model on conversations, on what an environment's oracle does, or on recorded rollouts.",
    params=[
        *_options(),
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            help="file with any of these, TOML or a run's config.json; flags win",
        ),
        click.Option(["--resume"], type=click.Path(path_type=Path), help="run folder to go on with"),
        click.Option(["--quiet"], is_flag=True, help="only warnings, errors, and what the run leaves"),
        click.Option(["--dry-run"], is_flag=True, help="make the samples, print the configuration, and stop"),
    ],
)
