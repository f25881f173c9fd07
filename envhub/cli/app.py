"""The command line. A command's module is imported when the command is run, so that `--help` stays quick."""

import errno
import importlib
import io
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from envhub.errors import EnvhubError, UserError, did_you_mean

COMMANDS = {
    "list": "Show the environments, rewards, algorithms, engines and parsers that are there.",
    "info": "Show an environment: what it does, its configuration, tasks, rewards and limits.",
    "init": "Write a new environment as a complete package.",
    "register": "Record an environment, so that its name works from any folder.",
    "unregister": "Forget a registered environment.",
    "check": "Examine an environment and say what is wrong with it.",
    "play": "Be the agent: play an environment in the terminal.",
    "eval": "Evaluate a model on an environment.",
    "compare": "Compare two evaluations.",
    "train": "Train a model on an environment.",
    "sft": "Train a model on written or recorded conversations.",
    "merge": "Merge a trained adapter into its base model.",
    "plot": "Draw the curves of training runs.",
    "replay": "Run recorded rollouts again and report the first difference.",
    "sandbox": "Run a file or a shell in a sandbox, or remove what killed sandboxes left.",
    "serve": "Serve a sandbox to other processes and machines.",
    "doctor": "Examine this installation and say how to repair it.",
}


# What the system answers where a place that the user names cannot be used.
_USERS_PLACES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOSPC)
_ENDLESS = re.compile(r"\S{400,}")
_SUPERFLUOUS = re.compile(r"Got unexpected extra arguments? \((\S+?)[ )]")


class LazyGroup(click.Group):
    """Lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return click.Command(cmd_name, short_help=COMMANDS[cmd_name], help=COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise UserError(f"no command {name!r}; there are {known}{did_you_mean(name, COMMANDS)}")
        return name, load_command(name), args[1:]


def load_command(name: str) -> click.Command:
    """Import and return a command."""
    module = importlib.import_module(f"envhub.cli.commands.{name}")
    command: click.Command = module.command
    command.name = name
    command.help = command.help or COMMANDS[name]
    return command


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from envhub import __version__

        click.echo(f"envhub {__version__}")
        ctx.exit()


app = LazyGroup(
    "envhub",
    help="Write an environment once; evaluate any model on it and train any open model with it.\n\n"
    "envhub COMMAND --help explains a command. --debug shows the whole traceback of an error.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    params=[
        click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
        )
    ],
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 the user's mistake, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    sys.exit(run([item for item in given if item != "--debug"], debug=debug))


def run(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run the command line and return its exit code."""
    _show_any_text()
    _show_warnings()
    _end_cleanly_on_sigterm()
    given = list(arguments)
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    try:
        result: Any = app.main(given, prog_name="envhub", standalone_mode=False)
    except click.exceptions.Exit as finished:
        return finished.exit_code
    except click.exceptions.NoArgsIsHelpError as problem:
        click.echo(problem.format_message())
        return 0
    except click.UsageError as problem:
        return _failed(_usage(problem), 2, debug)
    except (KeyboardInterrupt, click.Abort):
        click.echo("envhub: interrupted", err=True)
        return 130
    except BrokenPipeError:
        return 1
    except BaseException as problem:  # also what is no Exception, such as a SystemExit of a plugin
        from envhub.guard import described, text_of

        if isinstance(problem, EnvhubError):
            code = 2 if isinstance(problem, UserError) else 1
            return _failed(text_of(problem) or described(problem), code, debug)
        if isinstance(problem, ValueError) and str(problem) == "embedded null byte":
            return _failed("a path has a NUL character, which no file system takes; leave it out", 2, debug)
        if isinstance(problem, OSError) and problem.errno in _USERS_PLACES and problem.filename is not None:
            return _failed(f"cannot use {problem.filename}: {problem.strerror}", 2, debug)
        text = f"internal error: {described(problem)}; run it again with --debug and report the traceback"
        return _failed(text, 1, debug)
    return result if isinstance(result, int) else 0


def _failed(text: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    click.echo(f"envhub: {_ENDLESS.sub(_shortened, text)}", err=True)
    return code


def _shortened(match: re.Match[str]) -> str:
    return f"{match[0][:80]}…{match[0][-40:]}"


def _usage(problem: click.UsageError) -> str:
    text = problem.format_message().rstrip(".")
    name = problem.ctx.command_path.removeprefix("envhub ") if problem.ctx is not None else ""
    if isinstance(problem, click.NoSuchOption) and problem.ctx is not None:
        flags = [flag for item in problem.ctx.command.params for flag in (*item.opts, *item.secondary_opts)]
        text = f"no such flag {problem.option_name}{did_you_mean(problem.option_name, flags)}"
    elif problem.ctx is not None and (match := _SUPERFLUOUS.match(text)) and _takes_env(problem.ctx.command):
        text += f"; the environment is given with --env: --env {shlex.quote(match[1])}"
    remedy = f"envhub {name} --help" if name and name != "envhub" else "envhub --help"
    return f"{text} (see: {remedy})"


def _takes_env(command: click.Command) -> bool:
    return any("--env" in item.opts for item in command.params)


def _end_cleanly_on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C, so that what was started is also ended; a second one ends the process at once."""
    import signal
    import threading

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script starts it in the background
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _show_any_text() -> None:
    """Escape what the terminal's encoding does not have, such as half of a surrogate pair, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _show_warnings() -> None:
    """Show envhub's own warnings as one line without a place in the code."""
    import warnings

    shown = warnings.showwarning

    def show(
        message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if category.__module__.startswith("envhub."):
            click.echo(f"envhub: note: {message}", err=True)
        else:
            shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show
