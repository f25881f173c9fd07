"""`envhub train`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envhub import task_host
from envhub.errors import UserError
from envhub.strict_json import dumps

if TYPE_CHECKING:
    from envhub.trainer.config import TrainConfig


def _options() -> list[click.Parameter]:
    from envhub.cli.options import options_of
    from envhub.trainer.config import TrainConfig

    return options_of(TrainConfig)


def _callback(config: Path | None, resume: Path | None, dry_run: bool, plain: bool, quiet: bool, **values: Any) -> int:
    from envhub.cli.options import given, require_packages

    require_packages("envhub train", "torch", "transformers")
    from envhub.records.folder import CONFIG
    from envhub.trainer.config import TrainConfig, layers, resolve
    from envhub.trainer.folder import CHANGEABLE, refuse_fixed, saved_config
    from envhub.trainer.presets import origins

    chosen = given(TrainConfig, values)
    if resume is not None:
        refuse_fixed(chosen, CHANGEABLE, config)
        saved_config(resume)
        config = resume / CONFIG
    try:
        resolved = resolve(chosen, file=config)
    except (RecursionError, ValueError) as problem:  # from the parser of the file: its own limits
        if config is None:
            raise
        detail = "nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise UserError(f"{config} cannot be read: {detail}") from None
    if dry_run:
        from envhub.agents.models import resolve_model
        from envhub.trainer.lora import refuse_unfit
        from envhub.trainer.plan import plan
        from envhub.trainer.reference import find_reference

        algorithm = plan(resolved).algorithm
        initial = resolve_model(resolved.model)
        find_reference(resolved.reference, initial, algorithm.kl_coef)
        refuse_unfit(initial.path, resolved)
        values_of = resolved.model_dump(mode="json")
        click.echo(dumps(values_of, indent=2))
        for source, names in origins(layers(chosen, config)).items():
            click.echo(f"{source}: {', '.join(f'{name} {dumps(values_of[name])}' for name in names)}", err=True)
        click.echo("all others: defaults", err=True)
        click.echo(algorithm.described(), err=True)
        return 0
    from envhub.trainer.live import progress_for
    from envhub.trainer.run import train

    with progress_for(plain=plain, quiet=quiet) as progress:
        folder = task_host.run(train(resolved, resume=resume, progress=progress))
    click.echo(f"done: {folder} (curve.png, metrics.jsonl, rollouts.sqlite, checkpoints/)")
    click.echo(what_next(resolved, folder))
    return 0


def what_next(config: "TrainConfig", folder: Path) -> str:
    """The commands that evaluate the model of a finished run, merged first where it is an adapter, and go on with the run."""
    from envhub.agents.engines.checkpoints import folder_name

    run = shlex.quote(str(folder))
    model, first = shlex.quote(str(folder / "checkpoints" / folder_name(config.steps))), ""
    if config.lora_rank:
        model = shlex.quote(f"{folder}-merged")
        first = f"envhub merge {run} {model} && "
    return (
        f"next: {first}envhub eval {shlex.quote(config.env)} --model {model}\n"
        f"      envhub train --resume {run} --steps {2 * config.steps}"
    )


command = click.Command(
    "train",
    callback=_callback,
    help="Train a model on an environment. Sizes that are not given come from the preset that fits this machine.",
    params=[
        *_options(),
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            help="file with any of these, TOML or a run's config.json; flags win",
        ),
        click.Option(["--resume"], type=click.Path(path_type=Path), help="run folder to go on with"),
        click.Option(["--plain"], is_flag=True, help="lines instead of the live view in a terminal"),
        click.Option(["--quiet"], is_flag=True, help="only warnings, errors, and the report at the end"),
        click.Option(["--dry-run"], is_flag=True, help="check everything, print the resolved configuration, and stop"),
    ],
)
