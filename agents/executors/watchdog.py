"""Names the code that blocks the event loop."""

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

logger = logging.getLogger("envhub.watchdog")

_HEARTBEAT = 0.1
_LIBRARY = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], "<frozen")


@dataclass(frozen=True, slots=True)
class Blocked:
    """The event loop was blocked: by which task (rollouts' tasks are named after their environment), where, how long.

    `seconds` is how long it had lasted when it was noticed; for `waited` of them the thread was ready to run and had no CPU
    (0 where the system does not say).
    """

    task: str
    file: str
    line: int
    function: str
    seconds: float
    waited: float = 0.0

    @property
    def is_starved(self) -> bool:
        """Whether nothing held the loop but other processes, which had the CPUs."""
        return self.waited > self.seconds / 2

    def __str__(self) -> str:
        if self.is_starved:
            return (
                f"the event loop stood still for {self.seconds:.1f} s, {self.waited:.1f} s of them because this process got "
                "no CPU: the machine is overloaded; end other programs, or lower --concurrency"
            )
        return (
            f"the event loop has been blocked for {self.seconds:.1f} s by {self.task} at {self.file}:{self.line} in "
            f"{self.function}; make the method a plain def (it then runs in a thread) or await what it waits for"
        )


class Watchdog:
    """Watches the running event loop from a thread and reports code that holds it for over `seconds`.

    Each block is in `blocks` and reported by `on_block`; the logger `envhub.watchdog` tells the first at each line of code,
    and the first for want of a CPU. Code that holds the interpreter lock inside of one C call is noticed only when that call
    returns.
    """

    def __init__(self, seconds: float = 1.0, on_block: Callable[[Blocked], None] | None = None) -> None:
        self.seconds = seconds
        self.blocks: list[Blocked] = []
        self._on_block = on_block
        self._told: set[tuple[str, int] | None] = set()
        self._beat = 0.0
        self._stop = threading.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread, self._native = threading.get_ident(), threading.get_native_id()
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
        seen = reported = waited = 0.0
        while not self._stop.wait(_HEARTBEAT):
            beat = self._beat
            if beat != seen:
                seen, waited = beat, _waited(self._native)
            late = time.monotonic() - beat - _HEARTBEAT
            if late >= self.seconds and beat != reported:
                reported = beat
                self._report(late, _waited(self._native) - waited)

    def _report(self, late: float, waited: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return
        place = _culprit(frame)
        task = asyncio.current_task(self._loop)
        name = task.get_name() if task is not None else "a callback"
        code = place.f_code
        block = Blocked(name, code.co_filename, place.f_lineno, code.co_name, late, waited)
        self.blocks.append(block)
        subject = None if block.is_starved else (block.file, block.line)
        if subject not in self._told:
            self._told.add(subject)
            logger.warning("%s", block)
        if self._on_block is not None:
            self._on_block(block)


def _waited(thread: int) -> float:
    """Seconds that a thread of this process has been ready to run without a CPU; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _culprit(frame: FrameType) -> FrameType:
    """The innermost frame outside of the standard library and installed packages, or else the innermost one."""
    at: FrameType | None = frame
    while at is not None:
        if not at.f_code.co_filename.startswith(_LIBRARY):
            return at
        at = at.f_back
    return frame
