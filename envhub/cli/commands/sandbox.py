"""`envhub sandbox`."""

import asyncio
from pathlib import Path
from typing import Any

import click

from envhub.cli.options import given, options_of
from envhub.environment import validate_config
from envhub.errors import UserError
from envhub.sandbox import AUTO, ExecResult, RunOutcome, SandboxLimits, make_sandbox

command = click.Group("sandbox", help="Run a file as a submission, or remove what killed sandboxes left.")


async def _ended(tier: str, source: str, stdin: str, limits: SandboxLimits) -> tuple[str, ExecResult]:
    sandbox = make_sandbox(tier)
    try:
        await sandbox.start()
        return sandbox.tier, await sandbox.run_program(source, stdin, limits)
    finally:
        await sandbox.close()


def _run(file: Path, stdin: Path | None, tier: str, **values: Any) -> int:
    limits: SandboxLimits = validate_config(SandboxLimits, given(SandboxLimits, values), "the limits")
    chosen, result = asyncio.run(_ended(tier, _text(file), "" if stdin is None else _text(stdin), limits))
    click.echo(result.stdout, nl=False)
    click.echo(result.stderr, nl=False, err=True)
    said = f"{result.outcome.value}, exit code {result.exit_code}, {result.seconds:.2f} s, tier {chosen}"
    click.echo(f"envhub: {said}", err=True)
    return 0 if result.outcome is RunOutcome.ok else 1


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise UserError(f"{file} is no UTF-8 text: {problem.reason} at byte {problem.start}") from None
    except OSError as problem:
        raise UserError(f"cannot read {file}: {problem.strerror}") from None


command.add_command(
    click.Command(
        "run",
        callback=_run,
        help="Run a Python file as a submission is run, and say how it ended.\n\n"
        "What it prints goes to stdout and stderr; the exit code is 0 where it ended with 0, else 1.",
        params=[
            click.Argument(["file"], type=click.Path(path_type=Path)),
            click.Option(["--stdin"], type=click.Path(path_type=Path), help="a file that it reads as its stdin"),
            click.Option(
                ["--tier"], default=AUTO, show_default=True, help="slot, process, or the best of this machine"
            ),
            *options_of(SandboxLimits),
        ],
    )
)


@command.command("gc", help="Remove the cgroups and folders of sandboxes whose process was killed.")
def _collect() -> None:
    from envhub.sandbox.collecting import collect

    removed = collect()
    for place in removed:
        click.echo(f"removed {place}")
    click.echo(f"{len(removed)} left behind by killed processes, removed" if removed else "nothing to remove")
