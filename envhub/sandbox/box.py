"""One supervised process of the process tier, seen from the parent: started, spoken to, drained and cleaned up."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from envhub.errors import EnvironmentFault
from envhub.sandbox import landlock, leases
from envhub.sandbox.base import CallResult, RunOutcome, SandboxLimits
from envhub.sandbox.cgroups import Slot, Slots
from envhub.sandbox.places import own_rules, shared_ruleset
from envhub.sandbox.seccomp import build_filter
from envhub.sandbox.wire import TooLargeError, decode, frame

_SCRIPT = Path(__file__).with_name("child.py")
_CLEANUP_SECONDS = 60.0
_DRAIN_SECONDS = 2.0  # for what is left in a pipe whose writers are dead
FOLDERS = "envhub-sandbox"  # how the names of working directories begin
USERS = range(61_000, 61_512)
"""The private users of boxes."""
_OF_SESSION = 2  # its first process, and one program whatever others left running
_OWN_PROCESSES = 2  # of a box's cgroup beside those that a submission may have: RLIMIT_NPROC is to speak first
_SHARED = 32  # boxes that may have all of their processes at one time where the kernel counts those of a user together
_SIGXCPU, _SIGKILL = 24, 9
_CHILD_OUTCOMES = {outcome.value: outcome for outcome in RunOutcome if outcome is not RunOutcome.ok}


class BrokenProtocolError(Exception):
    """The process sent something other than the one reply that was asked for."""


class SubmissionError(Exception):
    """The submission cannot go on; `result` is why."""

    def __init__(self, result: CallResult) -> None:
        self.result = result


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


def _parse_reply(data: Any, nonce: str) -> CallResult:
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
        case [str(kind), str(message), str(builtin), list(arguments)]:
            outcome = _CHILD_OUTCOMES.get(kind, RunOutcome.error)
            plain = [
                _printable(value) if isinstance(value, str) else value
                for value in arguments
                if value is None or isinstance(value, str | int)
            ]
            return CallResult(outcome, error=_printable(message[:2000]), raised=(_printable(builtin), *plain))
        case [str(kind), str(message)]:
            return CallResult(_CHILD_OUTCOMES.get(kind, RunOutcome.error), error=_printable(message[:2000]))
    raise BrokenProtocolError("a reply without an error")


def _printable(text: str) -> str:
    """The text without halves of characters, which nothing can write down."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _claim_user() -> tuple[int, socket.socket]:
    """A user id that no other sandbox on this machine uses until the socket is closed."""
    for user in USERS:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0envhub-sandbox-user-{user}")
            return user, claim
        except OSError:
            claim.close()
    raise EnvironmentFault(f"all {len(USERS)} sandbox users are taken; run fewer submissions at once")


def memory_file(name: str, data: bytes) -> int:
    """A descriptor of a file in memory that holds `data`, at its beginning."""
    fd = os.memfd_create(name)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _make_directory() -> str:
    """A new working directory, named without links."""
    return os.path.realpath(tempfile.mkdtemp(prefix=f"{FOLDERS}-{leases.label()}-"))


async def _readable(fd: int, seconds: float) -> None:
    """Wait until a descriptor can be read, or for so long."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if waiting.done() else waiting.set_result(None))
    try:
        await asyncio.wait([waiting], timeout=seconds)
    finally:
        loop.remove_reader(fd)


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

    def __init__(self, limits: SandboxLimits, slots: Slots, *, session: bool = False) -> None:
        """With `session` it runs no source but serves the requests of `init.py`, and shows the machine's programs."""
        self.limits = limits
        self.session = session
        self._slots = slots
        self._slot: Slot | None = None
        self.overflow = False
        self.status: dict[str, Any] = {}
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.started = 0.0
        self._directory: str | None = None
        self._claim: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._life = -1  # a descriptor that can be read when all of it is gone
        self._sockets: list[socket.socket] = []
        self._pipes: list[BinaryIO] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._drains: list[asyncio.Task[None]] = []
        self._report: asyncio.Task[None] | None = None

    async def start(
        self, source: str, entry: str | None, stdin: bytes = b"", names: Sequence[str] | None = None
    ) -> None:
        """Start the processes; returns when the source is about to run. Raises `EnvironmentFault`.

        With `names` the source is a test program, which asks for each call of one of these.
        """
        uid = None
        if os.geteuid() == 0:
            uid, self._claim = _claim_user()
            if self._slots:
                self._slot = self._slots.take(uid)
                own = _OWN_PROCESSES + (_OF_SESSION if self.session else 0)
                self._slot.bound(self.limits.total_mb, self.limits.processes + own, together=not self.session)
        confinement = self._make_place(uid)
        control, control_far = socket.socketpair()
        self._sockets += [control, control_far]
        channel, channel_far = socket.socketpair()
        self._sockets += [channel, channel_far]
        self._channel = channel
        limits = self.limits.model_dump()
        limits["processes"] += _OF_SESSION if self.session else 0
        if uid is None:
            limits["processes"] = limits["processes"] * _SHARED + _own_threads()
        config = {
            "source": source,
            "entry": entry,
            "names": None if names is None else list(names),
            "session": self.session,
            "limits": limits,
            "bounded": self.session and self._slot is not None,
            "uid": uid,
            "filter": build_filter(signals=uid is not None).hex(),
            **confinement,
        }
        self._spawn(control_far, channel_far, stdin, config)
        self._control_reader, self._control = await asyncio.open_unix_connection(sock=control)
        self._transports.append(self._control.transport)
        self.replies, self.requests = await asyncio.open_unix_connection(sock=channel)
        self._transports.append(self.requests.transport)
        for end, kept in zip(self._pipes, (self.stdout, self.stderr), strict=True):
            await self._attach(end, kept)
        await self._configure(config)
        ready = await read_frame(self._control_reader, 1 << 16)
        if "started" not in ready:
            raise EnvironmentFault(f"the sandbox could not confine a process: {ready.get('fault')}")
        self.started = time.monotonic()
        self._report = asyncio.create_task(self._read_report())

    def _make_place(self, uid: int | None) -> dict[str, object]:
        """Make the working directory; returns what the far side is told of it and of the files that can be read."""
        self._directory = _make_directory()
        if uid is not None:
            os.chown(self._directory, uid, uid)
        version = landlock.abi()
        rules = own_rules(self._directory, tools=self.session) if version else []
        return {"directory": self._directory, "landlock": version, "rules": rules}

    def _spawn(self, control: socket.socket, channel: socket.socket, stdin: bytes, config: dict[str, object]) -> None:
        """Start the supervisor. Not by asyncio, whose processes cannot be waited for once their tasks are cancelled."""
        assert self._directory is not None
        version = landlock.abi()
        shared = shared_ruleset(version, os.path.dirname(self._directory), tools=self.session) if version else -1
        with self._far_ends(control, channel, stdin) as (given, out, err):
            fds = (control.fileno(), channel.fileno(), shared, *self._joins())
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_SCRIPT), *map(str, fds)],
                stdin=given,
                stdout=out,
                stderr=err,
                pass_fds=[fd for fd in fds if fd >= 0],
                env={},
                cwd=self._directory,
                start_new_session=True,
            )
        self._life = os.pidfd_open(self._process.pid)

    def _joins(self) -> list[int]:
        """The descriptors by which the far side joins its cgroups."""
        return [] if self._slot is None else self._slot.joins

    @contextlib.contextmanager
    def _far_ends(self, control: socket.socket, channel: socket.socket, stdin: bytes) -> Iterator[tuple[int, int, int]]:
        """The far side's stdin, stdout and stderr; they and its sockets are closed here afterwards."""
        out, out_far = os.pipe()
        self._pipes.append(os.fdopen(out, "rb", 0))
        err, err_far = os.pipe()
        self._pipes.append(os.fdopen(err, "rb", 0))
        given = memory_file("stdin", stdin)
        try:
            yield given, out_far, err_far
        finally:
            for fd in (given, out_far, err_far):
                os.close(fd)
            control.close()
            channel.close()

    async def _configure(self, config: dict[str, object]) -> None:
        self._control.write(frame(config))
        await self._control.drain()

    async def _attach(self, end: BinaryIO, kept: bytearray) -> None:
        reader = asyncio.StreamReader()
        make = lambda: asyncio.StreamReaderProtocol(reader)  # noqa: E731
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(make, end)
        self._transports.append(transport)
        self._drains.append(asyncio.create_task(self._drain(reader, kept)))

    async def _read_report(self) -> None:
        self.status = await read_frame(self._control_reader, 1 << 16)
        late = (await asyncio.wait(self._drains, timeout=_DRAIN_SECONDS))[1]
        if late:  # an end of its pipes lies in a message that nobody has read: it goes with the socket
            self.requests.transport.abort()
            late = (await asyncio.wait(late, timeout=_DRAIN_SECONDS))[1]
        for drain in late:
            drain.cancel()

    async def _drain(self, reader: asyncio.StreamReader, kept: bytearray) -> None:
        """Read to the end whatever comes; keep at most the limit, and stop the candidate beyond it."""
        cap = self.limits.output_kb << 10
        while part := await reader.read(1 << 16):
            self.overflow = self.overflow or len(kept) + len(part) > cap
            kept += part[: cap - len(kept)]
            if self.overflow:
                self.stop()

    @property
    def may_kill(self) -> bool:
        """Whether its first process may kill all others that it can signal: they are all of the box."""
        return self._claim is not None

    @property
    def home(self) -> str:
        """The working directory, as its processes name it."""
        assert self._directory is not None
        return self._directory

    async def post(self, request: dict[str, object], *fds: int) -> None:
        """Send one frame, and with its beginning descriptors. Raises `ConnectionError`."""
        data = frame(request)
        socket.send_fds(self._channel, [data[:4]], list(fds))  # all that went before was answered: there is room
        self.requests.write(data[4:])
        await self.requests.drain()

    def post_now(self, request: dict[str, object]) -> None:
        """Send one frame without waiting. What cannot be sent is not: the box is gone."""
        with contextlib.suppress(OSError):
            self.requests.write(frame(request))

    async def reply(self) -> dict[str, Any]:
        """The next frame of a session. Raises what `exchange` does."""
        data = await read_frame(self.replies, 1 << 16)
        if not isinstance(data, dict):
            raise BrokenProtocolError("no reply")
        return data

    def count_memory_anew(self) -> None:
        """Let `out_of_memory` tell of what happens from here on."""
        if self._slot is not None:
            self._slot.count_anew()

    def out_of_memory(self) -> bool:
        """Whether one of its processes was killed since all of them together took more than they may."""
        return self._slot is not None and self._slot.out_of_memory()

    async def exchange(self, request: dict[str, object], limit: int) -> Any:
        """Send one frame and read one of at most `limit` bytes. Raises what `read_frame` does, and `ConnectionError`."""
        self.requests.write(frame(request))
        await self.requests.drain()
        return await read_frame(self.replies, limit)

    async def ask(self, request: dict[str, object]) -> CallResult:
        """The answer of a served submission to one request.

        Raises `SubmissionError` for what is no answer, `IncompleteReadError` or `ConnectionError` where none comes.
        """
        nonce = secrets.token_hex(8)
        try:
            data = await self.exchange({"i": nonce, **request}, (self.limits.result_kb << 10) + 1024)
            return _parse_reply(data, nonce)
        except TooLargeError as error:
            raise SubmissionError(CallResult(RunOutcome.result_limit, error=str(error))) from None
        except BrokenProtocolError as error:
            raise SubmissionError(CallResult(RunOutcome.error, error=f"the process sent {error}")) from None

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
        if code == -_SIGKILL and self.out_of_memory():
            return RunOutcome.memory, f"all of its processes took more than {self.limits.total_mb} MB"
        if self.status["reason"] == "disk":
            return RunOutcome.output_limit, f"wrote more than {self.limits.disk_mb} MB, or too many files"
        if code == -_SIGXCPU or (code == -_SIGKILL and cpu >= self.limits.cpu_seconds):
            return RunOutcome.timeout, f"used more than {self.limits.cpu_seconds} s of CPU time"
        return RunOutcome.exited, f"the process ended with {f'exit code {code}' if code >= 0 else f'signal {-code}'}"

    async def label(self) -> RunOutcome:
        """What the program itself called its failure; only a name for one, it never makes a success."""
        try:
            async with asyncio.timeout(1.0):
                return _parse_reply(await read_frame(self.replies, 1 << 16), "").outcome
        except (TooLargeError, BrokenProtocolError, EOFError, ConnectionError, TimeoutError):
            return RunOutcome.error

    async def finish(self) -> None:
        """End the processes, wait for them, and give back what they held, also when cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        if self._is_started():
            if self._report is not None:
                self.stop()
            else:  # the candidate has not started, or just did: without its supervisor it dies as well
                self._abandon()
            deadline = time.monotonic() + _CLEANUP_SECONDS
            while not self._is_gone():
                try:
                    await _readable(self._life, 1.0)
                except asyncio.CancelledError as error:
                    cancelled = error
                if time.monotonic() > deadline:
                    self._kill()
        self._release()
        try:
            await asyncio.sleep(0)  # the transports close in their callbacks
        except asyncio.CancelledError as error:
            cancelled = error
        if cancelled is not None:
            raise cancelled

    def _is_started(self) -> bool:
        return self._life >= 0

    def _is_gone(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _abandon(self) -> None:
        """Close our ends of the sockets: the supervisor takes it as the order to stop, whatever it was doing."""
        for transport in self._transports:
            transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()
        for end in self._sockets:
            end.close()

    def _release(self) -> None:
        tasks = [*self._drains, *([self._report] if self._report else [])]
        for task in tasks:
            if not task.cancel() and not task.cancelled():
                task.exception()  # was raised where it was awaited, if it was
        self._abandon()
        for pipe in self._pipes:
            pipe.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        if self._directory is not None and os.path.exists(self._directory):
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._claim is not None:
            self._claim.close()

    def complaint(self) -> str:
        """The last line that the supervisor wrote before it failed."""
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else "no message"
