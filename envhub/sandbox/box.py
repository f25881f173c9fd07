"""One supervised process of the process tier, seen from the parent: started, spoken to, drained and cleaned up."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from envhub.errors import EnvironmentFault
from envhub.sandbox.base import CallResult, RunOutcome, SandboxLimits
from envhub.sandbox.seccomp import build_filter
from envhub.sandbox.wire import TooLargeError, decode, frame

_SCRIPT = Path(__file__).with_name("child.py")
_CLEANUP_SECONDS = 60.0
_FIRST_UID, _SLOTS = 61_000, 512
_SIGXCPU, _SIGKILL = 24, 9
_CHILD_OUTCOMES = {outcome.value: outcome for outcome in RunOutcome if outcome is not RunOutcome.ok}


class BrokenProtocolError(Exception):
    """The process sent something other than the one reply that was asked for."""


def _parse_int(text: str) -> int:
    if len(text) > 4301:
        raise TooLargeError("an integer of more than 4300 digits")
    return int(text)


async def read_frame(reader: asyncio.StreamReader, limit: int) -> Any:
    """One frame's data. Raises `IncompleteReadError` at the end, `TooLargeError`, `BrokenProtocolError`."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > limit:
        raise TooLargeError("larger than the limit of a result")
    body = await reader.readexactly(size)
    try:
        return json.loads(body, parse_int=_parse_int, parse_constant=float)
    except TooLargeError:
        raise
    except (ValueError, RecursionError) as error:
        raise BrokenProtocolError("not a frame") from error


def parse_reply(data: Any, nonce: str) -> CallResult:
    if not isinstance(data, dict) or data.get("i") != nonce or set(data) not in ({"i", "r"}, {"i", "e"}):
        raise BrokenProtocolError("a reply to no request")
    if "r" in data:
        try:
            return CallResult(RunOutcome.ok, decode(data["r"]))
        except TooLargeError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise BrokenProtocolError("a reply without a value") from error
    match data["e"]:
        case [str(kind), str(message)]:
            return CallResult(_CHILD_OUTCOMES.get(kind, RunOutcome.error), error=message[:2000])
    raise BrokenProtocolError("a reply without an error")


def _claim_user() -> tuple[int, socket.socket]:
    """A user id that no other sandbox on this machine uses until the socket is closed."""
    for offset in range(_SLOTS):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0envhub-sandbox-user-{_FIRST_UID + offset}")
            return _FIRST_UID + offset, claim
        except OSError:
            claim.close()
    raise EnvironmentFault(f"all {_SLOTS} sandbox users are taken; run fewer submissions at once")


def _own_threads() -> int:
    """How many threads the current user has; RLIMIT_NPROC counts them all when there is no private user."""
    count = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += len(os.listdir(entry / "task"))
    return count


class Box:
    """One supervisor with its worker. Everything it made is gone when `finish` has returned, also after an error."""

    def __init__(self, limits: SandboxLimits, *, program: bool) -> None:
        self.limits = limits
        self.program = program
        self.overflow = False
        self.status: dict[str, Any] = {}
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.started = 0.0
        self._directory: str | None = None
        self._claim: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._sockets: list[socket.socket] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._drains: list[asyncio.Task[None]] = []
        self._report: asyncio.Task[None] | None = None

    async def start(self, source: str, entry: str | None) -> None:
        """Start the processes; returns when the candidate is about to run. Raises `EnvironmentFault`."""
        uid = None
        if os.geteuid() == 0:
            uid, self._claim = _claim_user()
        self._directory = tempfile.mkdtemp(prefix="envhub-sandbox-")
        if uid is not None:
            os.chown(self._directory, uid, uid)
        control, control_far = socket.socketpair()
        self._sockets += [control, control_far]
        channel, channel_far = socket.socketpair()
        self._sockets += [channel, channel_far]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-X", "utf8", str(_SCRIPT)),
            *(str(control_far.fileno()), str(channel_far.fileno())),
            stdin=asyncio.subprocess.PIPE if self.program else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(control_far.fileno(), channel_far.fileno()),
            env={},
            cwd=self._directory,
            start_new_session=True,
        )
        control_far.close()
        channel_far.close()
        assert self._process.stdout is not None and self._process.stderr is not None
        for reader, kept in ((self._process.stdout, self.stdout), (self._process.stderr, self.stderr)):
            self._drains.append(asyncio.create_task(self._drain(reader, kept)))
        self._control_reader, self._control = await asyncio.open_unix_connection(sock=control)
        self._writers.append(self._control)
        self.replies, self.requests = await asyncio.open_unix_connection(sock=channel)
        self._writers.append(self.requests)
        limits = self.limits.model_dump()
        if uid is None:
            limits["processes"] += _own_threads()
        self._control.write(
            frame(
                {
                    "source": source,
                    "entry": entry,
                    "limits": limits,
                    "uid": uid,
                    "directory": self._directory,
                    "filter": build_filter(signals=uid is not None).hex(),
                }
            )
        )
        await self._control.drain()
        ready = await read_frame(self._control_reader, 1 << 16)
        if "started" not in ready:
            raise EnvironmentFault(f"the sandbox could not confine a process: {ready.get('fault')}")
        self.started = time.monotonic()
        self._report = asyncio.create_task(self._read_report())

    async def _read_report(self) -> None:
        self.status = await read_frame(self._control_reader, 1 << 16)
        await asyncio.gather(*self._drains)

    async def _drain(self, reader: asyncio.StreamReader, kept: bytearray) -> None:
        """Read to the end whatever comes; keep at most the limit, and stop the candidate beyond it."""
        cap = self.limits.output_kb << 10
        while part := await reader.read(1 << 16):
            self.overflow = self.overflow or len(kept) + len(part) > cap
            kept += part[: cap - len(kept)]
            if self.overflow:
                self.stop()

    def stop(self) -> None:
        """Ask the supervisor to kill everything; it still reports and cleans up."""
        with contextlib.suppress(OSError):
            if not self._control.is_closing():
                self._control.write_eof()

    async def ended(self) -> None:
        """Wait until everything is dead and removed, and keep the supervisor's report."""
        assert self._report is not None
        await asyncio.shield(self._report)

    def outcome(self) -> tuple[RunOutcome, str]:
        """How the process ended, for work that it did not finish."""
        code, cpu = self.status["code"], self.status["cpu"]
        if self.overflow:
            return RunOutcome.output_limit, f"printed more than {self.limits.output_kb} kB"
        if self.status["reason"] == "disk":
            return RunOutcome.output_limit, f"wrote more than {self.limits.disk_mb} MB, or too many files"
        if code == -_SIGXCPU or (code == -_SIGKILL and cpu >= self.limits.cpu_seconds):
            return RunOutcome.timeout, f"used more than {self.limits.cpu_seconds} s of CPU time"
        return RunOutcome.exited, f"the process ended with {f'exit code {code}' if code >= 0 else f'signal {-code}'}"

    async def feed(self, data: bytes) -> None:
        """Write the program's standard input and close it; a program that does not read it is no error."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        self._process.stdin.close()

    async def label(self) -> RunOutcome:
        """What the program itself called its failure; only a name for one, it never makes a success."""
        try:
            async with asyncio.timeout(1.0):
                return parse_reply(await read_frame(self.replies, 1 << 16), "").outcome
        except (TooLargeError, BrokenProtocolError, EOFError, ConnectionError, TimeoutError):
            return RunOutcome.error

    async def finish(self) -> None:
        """End the processes, wait for them, and give back what they held. Never raises for what the candidate did."""
        try:
            if self._process is not None:
                if len(self._writers) == 2:
                    self.stop()
                elif self._process.returncode is None:
                    self._process.kill()
                try:
                    async with asyncio.timeout(_CLEANUP_SECONDS):
                        await asyncio.gather(self._process.wait(), *self._drains)
                except TimeoutError:
                    self._process.kill()
                    await self._process.wait()
        finally:
            tasks = [*self._drains, *([self._report] if self._report else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()
            for end in self._sockets:
                end.close()
            if self._directory is not None and os.path.exists(self._directory):
                await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
            if self._claim is not None:
                self._claim.close()

    def complaint(self) -> str:
        """The last line that the supervisor wrote before it failed."""
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else "no message"
