"""A person in a session: a program of it on the terminal that envhub was started on."""

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence

from envhub.sandbox.base import ExecResult, Session

_PART = 1 << 16


class _Relay:
    """Carries what one descriptor gives to another, which may not take it at once."""

    def __init__(self, source: int, target: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._target = source, target
        self._waiting = bytearray()
        self._loop.add_reader(source, self._read)

    def _read(self) -> None:
        try:
            part = os.read(self._source, _PART)
        except BlockingIOError:
            return
        except OSError:  # the far end of a terminal is gone
            part = b""
        if not part:
            self._loop.remove_reader(self._source)
            return
        self._waiting += part
        self._loop.remove_reader(self._source)  # until it is written
        self._write()

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self._waiting[: os.write(self._target, self._waiting)]
        if self._waiting:
            self._loop.add_writer(self._target, self._write)
        else:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._read)

    def drain(self) -> None:
        """Carry all that is there."""
        while True:
            try:
                part = bytes(self._waiting) or os.read(self._source, _PART)
            except OSError:
                return
            self._waiting.clear()
            if not part:
                return
            while part:
                with contextlib.suppress(BlockingIOError):
                    part = part[os.write(self._target, part) :]

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._target)


async def interactive(session: Session, argv: Sequence[str]) -> ExecResult:
    """Run a program of a session on this process's terminal until it ends. Raises what `exec` does."""
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    near, far = pty.openpty()
    os.set_blocking(near, False)

    def take_size() -> None:
        fcntl.ioctl(near, termios.TIOCSWINSZ, fcntl.ioctl(stdin, termios.TIOCGWINSZ, bytes(8)))

    loop = asyncio.get_running_loop()
    take_size()
    loop.add_signal_handler(signal.SIGWINCH, take_size)
    try:
        with _raw(stdin):
            relays = _Relay(stdin, near), _Relay(near, stdout)
            try:
                result = await session.attach(
                    argv, far, {"TERM": os.environ.get("TERM", "dumb"), "PS1": r"sandbox:\w\$ "}
                )
                relays[1].drain()
            finally:
                for relay in relays:
                    relay.close()
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        os.close(near)
        os.close(far)
    return result


@contextlib.contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the program: Ctrl-C is its interrupt and not ours."""
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
