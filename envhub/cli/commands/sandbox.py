"""`envhub sandbox`."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from envhub.cli.options import given, options_of
from envhub.environment import validate_config
from envhub.errors import UserError
from envhub.sandbox import (
    AUTO,
    LANGUAGES,
    ExecResult,
    RunOutcome,
    Sandbox,
    SandboxLimits,
    SessionError,
    make_sandbox,
    run_program,
)

command = click.Group("sandbox", help="Run a file or a shell in a sandbox, or remove what killed sandboxes left.")

_TIER = click.Option(
    ["--tier"], default=AUTO, show_default=True, help="slot, userns, process, or the best of this machine"
)
_SHELL = ("bash", "--norc", "-i")


async def _ended(sandbox: Sandbox, language: str, source: str, stdin: str, limits: SandboxLimits) -> ExecResult:
    try:
        await sandbox.start()
        return await run_program(sandbox, source, stdin, limits, language=language)
    finally:
        await sandbox.close()


def _run(file: Path, stdin: Path | None, language: str | None, tier: str, **values: Any) -> int:
    limits = _limits(values)
    chosen = language or _language_of(file)
    source, given_text = _text(file), "" if stdin is None else _text(stdin)
    sandbox = make_sandbox(tier)
    return _told(asyncio.run(_ended(sandbox, chosen, source, given_text, limits)), sandbox.tier)


def _told(result: ExecResult, tier: str) -> int:
    """Print what a program printed and how it ended; returns the exit code of the command."""
    click.echo(result.stdout, nl=False)
    click.echo(result.stderr, nl=False, err=True)
    begin = "\n" if result.stderr and not result.stderr.endswith("\n") else ""
    said = f"{result.outcome.value}, exit code {result.exit_code}, {result.seconds:.2f} s, tier {tier}"
    click.echo(f"{begin}envhub: {said}", err=True)
    return 0 if result.outcome is RunOutcome.ok else 1


def _limits(values: dict[str, Any]) -> SandboxLimits:
    limits: SandboxLimits = validate_config(SandboxLimits, given(SandboxLimits, values), "the limits")
    return limits


def _language_of(file: Path) -> str:
    known = {ending: language.name for language in LANGUAGES.values() for ending in language.endings}
    if file.suffix not in known:
        endings = ", ".join(known)
        raise UserError(f"{file} has no ending that tells its language ({endings}): name it by --language")
    return known[file.suffix]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise UserError(f"{file} is no UTF-8 text: {problem.reason} at byte {problem.start}") from None
    except OSError as problem:
        raise UserError(f"cannot read {file}: {problem.strerror}") from None


def _data(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UserError(f"cannot read {file}: {problem.strerror}") from None


command.add_command(
    click.Command(
        "run",
        callback=_run,
        help="Run a file as a submission is run, and say how it ended.\n\n"
        "What it prints goes to stdout and stderr; the exit code is 0 where it ended with 0, else 1.",
        params=[
            click.Argument(["file"], type=click.Path(path_type=Path)),
            click.Option(["--stdin"], type=click.Path(path_type=Path), help="a file that it reads as its stdin"),
            click.Option(["--language"], type=click.Choice(list(LANGUAGES)), help="default: by the ending of its name"),
            _TIER,
            *options_of(SandboxLimits),
        ],
    )
)


async def _in_shell(
    sandbox: Sandbox, files: dict[str, bytes], commands: bytes | None, limits: SandboxLimits
) -> ExecResult:
    from envhub.sandbox.terminal import interactive

    try:
        await sandbox.start()
        async with await sandbox.open_session(limits) as session:
            for name, data in files.items():
                await session.write(name, data, executable=True)
            if commands is not None:
                return await session.exec(_SHELL[:1], stdin=commands)
            return await interactive(session, _SHELL)
    except SessionError as problem:
        raise UserError(str(problem)) from None
    finally:
        await sandbox.close()


def _shell(files: tuple[Path, ...], tier: str, **values: Any) -> int:
    limits, sandbox = _limits(values), make_sandbox(tier)
    by_name = {file.name: _data(file) for file in files}
    if len(by_name) < len(files):
        raise UserError("two of the files have the same name; give each name once")
    commands = None if sys.stdin.isatty() and sys.stdout.isatty() else sys.stdin.buffer.read()
    result = asyncio.run(_in_shell(sandbox, by_name, commands, limits))
    return _told(result, sandbox.tier)


command.add_command(
    click.Command(
        "shell",
        callback=_shell,
        help="A shell in a sandbox, with copies of FILES in it.\n\n"
        "On a terminal it goes on until you leave it, and wall time and output are not bounded. Else it runs the commands "
        "that it reads from stdin. Its files are gone afterwards.",
        params=[
            click.Argument(["files"], nargs=-1, type=click.Path(path_type=Path)),
            _TIER,
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
