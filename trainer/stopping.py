"""How a run stops: Ctrl-C lets what is being learnt or saved come to its end, a second one ends the process at once."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

INTERRUPTED = 130
STOPPING = "stopping: what is being learnt or saved comes to its end first; Ctrl-C again ends at once"


async def whole(job: Coroutine[Any, Any, T], *, hurry: Callable[[], object] | None = None) -> T:
    """Await a job to its end, whatever happens: a cancellation that arrives meanwhile is raised after it.

    `hurry` is called when one arrives: it ends what the job need not wait for.
    """
    task = asyncio.ensure_future(job)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as problem:
            cancelled = problem
            if hurry is not None:
                hurry()
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


@contextlib.contextmanager
def second_at_once(say: Callable[[], None]) -> Iterator[None]:
    """While the block runs, a second Ctrl-C ends the process with code 130, whatever its threads do; `say` is called at
    the first, on the running event loop, which is cancelled as ever. Does nothing outside of the main thread.

    What the process started ends with it: engines have a guardian, environments and sandboxes die with their parent.
    """
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(before):  # another thread, or a process that ignores Ctrl-C
        yield
        return
    loop, handler, count = asyncio.get_running_loop(), before, 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            print("\nenvhub: interrupted", file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
        loop.call_soon_threadsafe(say)
        handler(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
