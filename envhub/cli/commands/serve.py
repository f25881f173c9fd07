"""`envhub serve`."""

import asyncio
import contextlib
import importlib.util
import ipaddress
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import click

from envhub.cli.options import given, options_of
from envhub.environment import validate_config
from envhub.errors import MissingExtraError, UserError
from envhub.sandbox import AUTO, SandboxLimits, make_sandbox, messages
from envhub.servers.settings import LARGEST, ServerSettings

command = click.Group("serve", help="Serve a part of envhub to other processes and machines.")


def _serve(host: str, port: int, tier: str, concurrency: int | None, largest: Path | None, **values: Any) -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise MissingExtraError("envhub serve", "servers")
    from envhub.servers.sandbox_server import SandboxServer, serve

    key = os.environ.get(messages.KEY, "")
    if not key and not _is_loopback(host):
        raise UserError(
            f"whoever reaches {host} could run programs here: set {messages.KEY} to a key, which its clients have too, or "
            "serve at 127.0.0.1"
        )
    settings = validate_config(ServerSettings, given(ServerSettings, values), "the server's settings")
    server = SandboxServer(make_sandbox(tier, concurrency), key, settings, _largest(largest))

    def ready(at: int) -> None:
        address = f"[{host}]" if ":" in host else host
        click.echo(f"serving the {server.sandbox.tier} sandbox at http://{address}:{at}; Ctrl-C ends it")

    async def until_stopped() -> None:
        serving = asyncio.create_task(serve(server, host, port, ready))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    asyncio.run(until_stopped())


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _largest(file: Path | None) -> SandboxLimits:
    if file is None:
        return LARGEST
    try:
        written = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"cannot read {file}: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{file} is no TOML: {problem}") from None
    limits: SandboxLimits = validate_config(SandboxLimits, {**LARGEST.model_dump(), **written}, str(file))
    return limits


command.add_command(
    click.Command(
        "sandbox",
        callback=_serve,
        help="Serve a sandbox over HTTP, for graders and agents on many machines.\n\n"
        "Clients take it by its address: ENVHUB_SANDBOX=http://HOST:PORT. Both sides read the key that they share from "
        "ENVHUB_SANDBOX_KEY; without one, it is served to this machine only.",
        params=[
            click.Option(["--host"], default="127.0.0.1", show_default=True, help="the address to serve at"),
            click.Option(["--port"], type=click.IntRange(0, 65_535), default=8700, show_default=True, help="0: any that is free"),
            click.Option(["--tier"], default=AUTO, show_default=True, help="slot, userns, process, or the best of this machine"),
            click.Option(["--concurrency"], type=int, help="submissions that run at one time (default: two for each core)"),
            click.Option(
                ["--largest"], type=click.Path(path_type=Path),
                help="a TOML file with the largest limits that a caller may ask for (such as total_mb = 1024)",
            ),
            *options_of(ServerSettings),
        ],
    )
)  # fmt: skip
