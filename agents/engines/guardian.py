"""Ends an engine's processes when the one that started them is gone, however it went (Linux).

A small process of its own waits for the end of its standard input, which the kernel closes with the parent. It then
kills every process that carries the engine's mark in its environment: such a process inherited it, from its first
moment on. Run as a script it imports nothing but the standard library.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "ENVHUB_ENGINE_MARK"
_STOP_SECONDS = 15.0


class Guardian:
    """Guards processes started with `variables` in their environment, until `close` or the end of this process."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), self.mark]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def variables(self) -> dict[str, str]:
        """What marks a process. The second has setproctitle leave the environment where the guardian reads it."""
        return {MARK: self.mark, "SPT_NOENV": "1"}

    def close(self) -> None:
        """Kill what is left of the guarded processes, and end. Safe to call twice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _marked(mark: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another user's
            continue
        if mark in variables:
            found.append(int(folder.name))
    return found


def _guard(mark: str) -> None:
    sys.stdin.buffer.read()
    quiet = 0
    while quiet < 2:  # what was about to be started when the parent went is found the second time
        found = _marked(f"{MARK}={mark}".encode())
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        quiet = 0 if found else quiet + 1
        time.sleep(0.1)


if __name__ == "__main__":
    _guard(sys.argv[1])
