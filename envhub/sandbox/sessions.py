"""A session: a box that lives through several programs, seen from the parent."""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envhub.errors import EnvironmentFault
from envhub.sandbox.base import ExecResult, RunOutcome, SandboxLimits, Session, SessionError, Snapshot
from envhub.sandbox.box import Box, BrokenProtocolError, memory_file
from envhub.sandbox.places import search_path
from envhub.sandbox.wire import TooLargeError

_ANSWER_SECONDS = 5.0  # for what the first process of a box does by itself
_FILE_SECONDS = 60.0
_SIGNAL_SHELLS = 128  # a shell's exit code of a program that a signal ended is this and the signal
_SIGKILL, _SIGXCPU = 9, 24
_HEADERS = 8 << 20  # of the most files that a home may have, in an archive
_GONE = (asyncio.IncompleteReadError, ConnectionError, BrokenProtocolError, TooLargeError)


class _Pipes:
    """Pipes whose far ends are given away. What comes is kept up to a cap; past it `overflow` is set."""

    def __init__(self, count: int, cap: int) -> None:
        self.overflow = asyncio.Event()
        self._cap = cap
        self._loop = asyncio.get_running_loop()
        self._kept: dict[int, bytearray] = {}
        self.fars: list[int] = []
        for _ in range(count):
            near, far = os.pipe()
            os.set_blocking(near, False)
            self._kept[near] = bytearray()
            self.fars.append(far)
            self._loop.add_reader(near, self._read, near)

    def _read(self, fd: int) -> bool:
        """Take what is there; False where nothing is, or nothing will ever be."""
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not part:
            self._loop.remove_reader(fd)
            return False
        kept = self._kept[fd]
        if len(kept) + len(part) > self._cap:
            self.overflow.set()
        kept += part[: self._cap - len(kept)]
        return True

    def all(self) -> list[bytes]:
        """What has come by now, of each."""
        for fd in self._kept:
            while not self.overflow.is_set() and self._read(fd):
                pass
        return [bytes(kept) for kept in self._kept.values()]

    def close_fars(self) -> None:
        """Close the ends that were given away, on this side."""
        while self.fars:
            os.close(self.fars.pop())

    def close(self) -> None:
        """Whoever writes has nobody to read it then."""
        self.close_fars()
        while self._kept:
            fd = self._kept.popitem()[0]
            self._loop.remove_reader(fd)
            os.close(fd)


class BoxSession(Session):
    """A session of the tiers that confine Linux processes. `turns` is entered while a program runs."""

    def __init__(self, box: Box, limits: SandboxLimits, turns: Any, closed: Any) -> None:
        self.limits, self.home = limits, box.home
        self.ended = ""
        self._box, self._turns, self._closed = box, turns, closed
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._finished = False

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        wall_seconds: float | None = None,
    ) -> ExecResult:
        request = self._request_of(argv, env, cwd)
        wall = self.limits.wall_seconds if wall_seconds is None else wall_seconds
        async with self._lock, self._turns():
            if self.ended:
                return ExecResult(RunOutcome.exited, -_SIGKILL, "", f"the session has ended: {self.ended}", 0.0)
            with self._ending_where_it_fails(), _closing(memory_file("stdin", _bytes(stdin))) as given:
                return await self._exec(request, given, wall)

    async def try_out(self, source: str) -> ExecResult:
        """Run Python in a process that is confined as programs are, where no interpreter may be found among them."""
        request: dict[str, object] = {"do": "python", "source": source}
        async with self._lock, self._turns():
            with self._ending_where_it_fails(), _closing(memory_file("stdin", b"")) as given:
                return await self._exec(request, given, self.limits.wall_seconds)

    async def converse(self, argv: Sequence[str], channel: int, wall_seconds: float) -> ExecResult:
        """Run a program whose standard input is `channel`, an end of a socket. Raises what `exec` does."""
        request = self._request_of(argv, None)
        async with self._lock:
            with self._ending_where_it_fails():
                return await self._exec(request, channel, wall_seconds)

    async def attach(self, argv: Sequence[str], terminal: int, env: Mapping[str, str]) -> ExecResult:
        request = self._request_of(argv, env)
        async with self._lock, self._turns():
            with self._ending_where_it_fails(), contextlib.closing(_Pipes(0, 0)) as pipes:
                self._box.count_memory_anew()
                began = time.monotonic()
                reply, _ = await self._answered({**request, "terminal": True}, [terminal] * 3, pipes, None, _nothing)
                outcome, code, said = self._judged(reply, timed_out=False, overflow=False)
        return ExecResult(outcome, code, "", said, time.monotonic() - began)

    def _request_of(self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str = "") -> dict[str, object]:
        """The request that runs a program. Raises SessionError for what none can be given."""
        words = [_word(item, "an argument") for item in argv]
        if not words or not words[0]:
            raise SessionError("there is no program to run: argv is empty")
        own = {_name(key): _word(value, key) for key, value in (env or {}).items()}
        settings = {**_environment(self.home), **own}
        return {
            "do": "exec",
            "argv": words,
            "env": settings,
            "cwd": os.path.join(self.home, _word(cwd, "a folder")),
            "terminal": False,
        }

    async def _exec(self, request: dict[str, object], given: int, wall: float) -> ExecResult:
        self._box.count_memory_anew()
        with contextlib.closing(_Pipes(2, self.limits.output_kb << 10)) as pipes:
            began = time.monotonic()
            reply, timed_out = await self._answered(request, [given], pipes, wall, self._kill_programs)
            seconds = time.monotonic() - began
            stdout, stderr = (kept.decode("utf-8", "replace") for kept in pipes.all())
            outcome, code, said = self._judged(reply, timed_out=timed_out, overflow=pipes.overflow.is_set())
        return ExecResult(outcome, code, stdout, stderr + said, seconds)

    async def _answered(
        self,
        request: dict[str, object],
        fds: list[int],
        pipes: _Pipes,
        seconds: float | None,
        hurry: Callable[[], object],
    ) -> tuple[dict[str, Any] | None, bool]:
        """The reply to a request, None where the box ended instead, and whether time was up.

        Where time is up, or too much comes through the pipes, `hurry` ends what goes on, or else the whole box ends.
        """
        reply = asyncio.ensure_future(self._request(request, fds, pipes))
        full = asyncio.ensure_future(pipes.overflow.wait())
        try:
            await asyncio.wait([reply, full], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not reply.done() and not full.done()
            if not reply.done():
                hurry()
                await asyncio.wait([reply], timeout=_ANSWER_SECONDS)
            if not reply.done():
                self._box.stop()
                await asyncio.wait([reply])
            return reply.result(), timed_out
        finally:
            full.cancel()
            if not reply.done():
                reply.cancel()
                await asyncio.wait([reply])

    async def _request(self, request: dict[str, object], fds: list[int], pipes: _Pipes) -> dict[str, Any] | None:
        """The reply to a request; None where the box ended instead."""
        try:
            await self._box.post(request, *fds, *pipes.fars)
            pipes.close_fars()
            return await self._box.reply()
        except _GONE:
            await self._note_end()
            return None

    def _kill_programs(self) -> None:
        """Kill every program, or, where that may reach others of this user, the box."""
        if self._box.may_kill:
            self._box.post_now({"do": "kill"})
        else:
            self._box.stop()

    def _judged(self, reply: dict[str, Any] | None, *, timed_out: bool, overflow: bool) -> tuple[RunOutcome, int, str]:
        """Outcome, exit code, and what is said of it beside what the program wrote."""
        if reply is not None and "refused" in reply:
            if not self._box.may_kill:  # it shares its limits with others of this user
                raise EnvironmentFault(f"the sandbox could not start a program: {reply['refused']}")
            return RunOutcome.exited, -_SIGKILL, f"the program was not started: {reply['refused']}"
        code = -_SIGKILL if reply is None else int(reply["code"])
        cpu = 0.0 if reply is None else float(reply["cpu"])
        if overflow:
            return RunOutcome.output_limit, code, ""
        if timed_out:
            return RunOutcome.timeout, code, ""
        if reply is None:
            return self._box.outcome()[0], code, f"the session has ended: {self.ended}"
        if code and self._box.out_of_memory():
            return RunOutcome.memory, code, ""
        signal = code - _SIGNAL_SHELLS if code > _SIGNAL_SHELLS else -code
        if signal == _SIGXCPU or (signal == _SIGKILL and cpu >= self.limits.cpu_seconds):
            return RunOutcome.timeout, code, ""
        return (RunOutcome.exited if code else RunOutcome.ok), code, ""

    async def kill(self) -> None:
        if not self._box.may_kill:
            raise SessionError("without a user of its own it may not end single programs: close the session")
        await self._done({"do": "sweep"}, "the programs")

    async def write(self, path: str, data: str | bytes, *, executable: bool = False) -> None:
        request: dict[str, object] = {"do": "write", "path": self._within(path), "mode": 0o755 if executable else 0o644}
        await self._done(request, path, given=_bytes(data))

    async def read(self, path: str, *, most_kb: int | None = None) -> bytes:
        kilobytes = self.limits.file_mb << 10 if most_kb is None else most_kb
        return await self._done({"do": "read", "path": self._within(path)}, path, most=kilobytes << 10)

    async def snapshot(self) -> Snapshot:
        return Snapshot(await self._done({"do": "pack"}, "the files", most=(self.limits.disk_mb << 20) + _HEADERS))

    async def restore(self, snapshot: Snapshot) -> None:
        await self._done({"do": "unpack"}, "the snapshot", given=snapshot.archive)

    async def _done(
        self, request: dict[str, object], what: str, *, given: bytes | None = None, most: int | None = None
    ) -> bytes:
        """Have the box do something by itself with what it is `given`; returns what it writes, of at most `most` bytes.

        Raises SessionError where it cannot.
        """
        async with self._lock:
            if self.ended:
                raise SessionError(f"the session has ended: {self.ended}")
            with self._ending_where_it_fails(), contextlib.closing(_Pipes(int(most is not None), most or 0)) as pipes:
                with _closing(-1 if given is None else memory_file("given", given)) as file:
                    fds = [] if given is None else [file]
                    reply, timed_out = await self._answered(request, fds, pipes, _FILE_SECONDS, pipes.close)
                overflow = pipes.overflow.is_set()
                found = [] if overflow or timed_out else pipes.all()
        if overflow:
            raise SessionError(f"{what}: larger than the {(most or 0) >> 10} kB that may be read", errno.EFBIG)
        if reply is None:
            raise SessionError(f"the session has ended: {self.ended}")
        if "refused" in reply or timed_out:
            raise SessionError(f"{what}: {reply.get('refused', 'it took too long')}", reply.get("errno"))
        return b"".join(found)

    def _within(self, path: str) -> str:
        """The path in the box. It is opened with the rights of a program there, so nothing more can be reached."""
        _word(path, "a path")
        if not path or path.endswith("/"):
            raise SessionError(f"{path!r} names no file")
        return os.path.join(self.home, path)

    @contextlib.contextmanager
    def _ending_where_it_fails(self) -> Iterator[None]:
        """A request that nobody waits for any more would have its answer taken for another's. Raises `EnvironmentFault`."""
        try:
            yield
        except BaseException as error:
            self.ended = self.ended or "a call of it was cancelled or failed"
            self._box.stop()
            if isinstance(error, OSError):
                raise EnvironmentFault(f"the sandbox failed ({type(error).__name__}: {error})") from error
            raise

    async def _note_end(self) -> None:
        try:
            async with asyncio.timeout(_FILE_SECONDS):
                await self._box.ended()
        except (TimeoutError, EOFError, ConnectionError) as error:
            raise EnvironmentFault(f"the sandbox failed ({type(error).__name__}): {self._box.complaint()}") from error
        self.ended = self.ended or self._box.outcome()[1]

    def end(self) -> None:
        """Kill all that runs in it, from any thread; whoever waits for a program learns that the session has ended."""
        self.ended = self.ended or "the sandbox was closed"
        self._loop.call_soon_threadsafe(self._box.stop)

    async def close(self) -> None:
        if not self._finished:
            self._finished = True
            self.ended = self.ended or "it was closed"
            self._closed(self)
            await self._box.finish()


def _nothing() -> None:
    """Called where there is nothing to hurry."""


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def _environment(home: str) -> dict[str, str]:
    """What a program finds in its environment."""
    return {
        "PATH": search_path(), "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _bytes(data: str | bytes) -> bytes:
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)


def _word(text: str, what: str) -> str:
    """A text that the kernel takes. Raises SessionError."""
    if "\0" in text:
        raise SessionError(f"{what} has a NUL character: {text[:80]!r}")
    return text


def _name(text: str) -> str:
    if not text or "=" in text:
        raise SessionError(f"{text!r} is no name of an environment variable")
    return _word(text, "a variable's name")
