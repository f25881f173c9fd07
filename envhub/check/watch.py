"""An event loop in a thread of its own that is watched from outside.

A call that hangs in a thread or in a process misses the driver's deadline. Async code that blocks the event loop cannot
be stopped from inside: the loop leaves a heartbeat, and whoever waits gives up on a loop without one.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from envhub.offload import stack_of

BEAT = 0.05


class WatchedLoop:
    """Runs one coroutine to its end in a daemon thread.

    Invariant: `finished` is set last, after everything that the coroutine and its loop hold has been freed.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._beat = time.monotonic()
        self._stopped = False
        self.finished = False
        self.problem: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._beat = time.monotonic()
        self._thread.start()

    @property
    def silence(self) -> float:
        """Seconds since the last heartbeat."""
        return time.monotonic() - self._beat

    @property
    def place(self) -> str:
        """Where the thread is right now, in words; empty when it has ended."""
        return stack_of(self._thread)

    def stop(self) -> None:
        """Cancel the coroutine; a loop that is blocked ends as soon as it goes on."""
        self._stopped = True
        loop, main = self._loop, self._main
        if loop is not None and main is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(main.cancel)

    def _serve(self) -> None:
        try:
            asyncio.run(self._live())
        except asyncio.CancelledError:
            pass
        except BaseException as problem:  # whatever it is, whoever watches is told
            self.problem = problem
        finally:
            self.finished = True

    async def _live(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopped:
            return
        heart = asyncio.create_task(self._beating())
        try:
            await self._work()
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)

    async def _beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(BEAT)
