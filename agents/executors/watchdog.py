"""Names the code that blocks the event loop."""

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

logger = logging.getLogger("envhub.watchdog")

_HEARTBEAT = 0.1
_LIBRARY = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], "<frozen")


@dataclass(frozen=True, slots=True)
class Blocked:
    """The event loop was blocked: by which task (rollouts' tasks are named after their environment), where, how long.

    `seconds` is how long it had lasted when it was noticed.
    """

    task: str
    file: str
    line: int
    function: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"the event loop has been blocked for {self.seconds:.1f} s by {self.task} at {self.file}:{self.line} in "
            f"{self.function}; make the method a plain def (it then runs in a thread) or await what it waits for"
        )


class Watchdog:
    """Watches the running event loop from a thread and reports code that holds it for over `seconds`.

    Each block is reported once, by the logger `envhub.watchdog`, by `on_block`, and in `blocks`. Code that holds the
    interpreter lock inside of one C call is noticed only when that call returns.
    """

    def __init__(self, seconds: float = 1.0, on_block: Callable[[Blocked], None] | None = None) -> None:
        self.seconds = seconds
        self.blocks: list[Blocked] = []
        self._on_block = on_block
        self._beat = 0.0
        self._stop = threading.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stop.clear()
        self._tick()
        self._thread = threading.Thread(target=self._watch, name="envhub-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._thread is not None:
            self._thread.join(timeout=2)

    async def __aenter__(self) -> "Watchdog":
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.stop()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self._handle = self._loop.call_later(_HEARTBEAT, self._tick)

    def _watch(self) -> None:
        reported = 0.0
        while not self._stop.wait(_HEARTBEAT):
            beat = self._beat
            late = time.monotonic() - beat - _HEARTBEAT
            if late >= self.seconds and beat != reported:
                reported = beat
                self._report(late)

    def _report(self, late: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return
        place = _culprit(frame)
        task = asyncio.current_task(self._loop)
        name = task.get_name() if task is not None else "a callback"
        code = place.f_code
        block = Blocked(name, code.co_filename, place.f_lineno, code.co_name, late)
        self.blocks.append(block)
        logger.warning("%s", block)
        if self._on_block is not None:
            self._on_block(block)


def _culprit(frame: FrameType) -> FrameType:
    """The innermost frame outside of the standard library and installed packages, or else the innermost one."""
    at: FrameType | None = frame
    while at is not None:
        if not at.f_code.co_filename.startswith(_LIBRARY):
            return at
        at = at.f_back
    return frame
