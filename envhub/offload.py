"""Run code that may block, hang or crash away from the event loop, with a deadline.

`ThreadHost` is one daemon thread: cheap, but a thread cannot be killed, so one that misses its deadline is abandoned
(and counted). `ProcessHost` is one child process that is killed when it misses its deadline. `ProcessPool` keeps several.
For coroutines see `envhub.task_host`.
"""

import asyncio
import contextlib
import itertools
import os
import pickle
import queue
import signal
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envhub.errors import DeadlineError, EnvhubError, EnvironmentFault, Fault
from envhub.guard import described
from envhub.task_host import settle

_names = itertools.count()
_HEADER = struct.Struct("!Q")
_KILL_GRACE = 5.0
_START_SECONDS = 120.0


class ThreadHost:
    """One daemon thread that runs calls in order. All calls of one host run in the same thread.

    After a deadline the thread is abandoned: `abandoned` is set and further calls raise DeadlineError at once.
    """

    abandoned_total = 0

    def __init__(self, name: str = "envhub") -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any], Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.name = f"{name}-{next(_names)}"
        self.abandoned = False
        self._closed = False

    async def call(self, function: Callable[..., Any], *args: Any, deadline: float, what: str, **kwargs: Any) -> Any:
        """Run `function` in the thread; DeadlineError naming `what` after `deadline` seconds."""
        if self.abandoned:
            raise DeadlineError(f"{what}: its thread still hangs in an earlier call")
        if self._closed:
            raise EnvironmentFault(f"{what}: its thread is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._calls.put((lambda: function(*args, **kwargs), future, loop))
        try:
            async with asyncio.timeout(deadline):
                return await future
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()
            self._abandon()
            where = stack_of(self._thread)
            raise DeadlineError(f"{what} did not return within {deadline:g} s{where}") from None
        except asyncio.CancelledError:
            self._abandon()
            raise

    def close(self) -> None:
        """Let the thread end after the calls it has."""
        self._closed = True
        self._calls.put(None)

    def _abandon(self) -> None:
        if not self.abandoned:
            self.abandoned = True
            ThreadHost.abandoned_total += 1
            self.close()

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            function, future, loop = item
            if future.cancelled():
                continue
            try:
                value, problem = function(), None
            except BaseException as caught:  # handed over to the awaiting task, which re-raises it
                value, problem = None, caught
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(settle, future, value, problem)


def stack_of(thread: threading.Thread | None) -> str:
    """`" (at file:line in function)"` for where a thread is right now, or an empty string."""
    frame = sys._current_frames().get(thread.ident or 0) if thread is not None else None
    if frame is None:
        return ""
    code = frame.f_code
    return f" (it sits at {code.co_filename}:{frame.f_lineno} in {code.co_name})"


class ProcessHost:
    """One child process that runs calls one at a time and is killed when a call misses its deadline.

    The child holds at most one object (made by `make`) whose methods `method` calls; `function` calls a module-level
    function by its `"module:name"`. Arguments and results are pickled; the child runs the user's own trusted code.
    """

    def __init__(self, name: str = "envhub") -> None:
        self.name = name
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self._process is not None and self._process.returncode is None

    async def make(self, target: str, config: Mapping[str, Any], *, deadline: float, what: str) -> None:
        """Create the child's object from an environment target and a configuration."""
        await self._request(("make", target, dict(config)), deadline, what)

    async def method(self, name: str, *args: Any, deadline: float, what: str, **kwargs: Any) -> Any:
        """Call a method of the child's object."""
        return await self._request(("method", name, args, kwargs), deadline, what)

    async def function(self, target: str, *args: Any, deadline: float, what: str, **kwargs: Any) -> Any:
        """Call the function `"module:qualname"` (or `"/file.py:qualname"`)."""
        return await self._request(("function", target, args, kwargs), deadline, what)

    async def start(self) -> None:
        """Start the child and wait until it is ready, so that start-up is not on a call's clock."""
        if self.alive:
            return
        environment = {**os.environ, "ENVHUB_WORKER": self.name}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "envhub.worker",
            *(path for path in sys.path if path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._receive()
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as problem:
            await self.kill()
            raise EnvironmentFault(f"the worker process {self.name!r} did not start: {problem!r}") from problem

    async def _request(self, request: tuple[Any, ...], deadline: float, what: str) -> Any:
        async with self._lock:
            await self.start()
            try:
                async with asyncio.timeout(deadline):
                    self._send(request)
                    kind, *rest = await self._receive()
            except TimeoutError:
                await self.kill()
                raise DeadlineError(f"{what} did not return within {deadline:g} s; its process was killed") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                process = self._process
                code = None if process is None else await _exit_code(process)
                await self.kill()
                raise EnvironmentFault(f"{what}: its process died ({_describe_exit(code)})") from None
            except BaseException:
                await self.kill()
                raise
        if kind == "ok":
            return rest[0]
        problem, trace = rest
        if isinstance(problem, EnvhubError):
            raise problem
        raise RemoteError(described(problem), trace)

    def _send(self, request: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        data = pickle.dumps(request)
        self._process.stdin.write(_HEADER.pack(len(data)) + data)

    async def _receive(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        (size,) = _HEADER.unpack(await self._process.stdout.readexactly(_HEADER.size))
        return pickle.loads(await self._process.stdout.readexactly(size))

    async def kill(self) -> None:
        """Kill the child and everything in its process group; wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(_exit_code(process))

    close = kill


class RemoteError(Fault):
    """An exception in a worker process that could not travel; `trace` is its traceback."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


async def _exit_code(process: asyncio.subprocess.Process) -> int | None:
    try:
        async with asyncio.timeout(_KILL_GRACE):
            return await process.wait()
    except TimeoutError:
        return None


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "no exit code"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


class ProcessPool:
    """At most `size` worker processes that run functions; each call has a process to itself while it runs.

    The clock of a call starts when a process begins it, not while it waits for one.
    """

    def __init__(self, size: int, name: str = "envhub") -> None:
        if size < 1:
            raise ValueError(f"a pool has at least one process, not {size}")
        self.name = name
        self._free = asyncio.Semaphore(size)
        self._idle: list[ProcessHost] = []

    async def call(self, target: str, *args: Any, deadline: float, what: str, **kwargs: Any) -> Any:
        """Run `"module:function"` in a process that is killed after `deadline` seconds."""
        async with self._free:
            host = self._idle.pop() if self._idle else ProcessHost(self.name)
            try:
                return await host.function(target, *args, deadline=deadline, what=what, **kwargs)
            finally:
                if host.alive:
                    self._idle.append(host)

    async def close(self) -> None:
        """End every idle process."""
        while self._idle:
            await self._idle.pop().kill()


def import_path(target: str) -> tuple[str | Path, str]:
    """Split `"module:name"` or `"/path/file.py:name"` into its place and its name."""
    place, separator, name = target.rpartition(":")
    if not separator:
        raise ValueError(f"expected 'module:name' or 'path.py:name', not {target!r}")
    return (Path(place) if place.endswith(".py") or "/" in place else place), name
