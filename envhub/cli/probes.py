"""Try an import in a process of its own, with a deadline: a crash or a hang there costs nothing here.

Standard library only, so that the set-up can use it in an environment that is half installed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO

_LAST_BYTES = 4000


@dataclass(frozen=True, slots=True)
class ImportProbe:
    """How an import went. `error` is the last line of the traceback, or what ended the process; empty when `ok`."""

    statement: str
    ok: bool
    seconds: float
    error: str = ""
    output: str = ""


def probe_import(statement: str, *, timeout: float = 120.0, python: str = sys.executable) -> ImportProbe:
    """Run `statement` in a fresh interpreter.

    `timeout` is in seconds; the whole process group is killed when it has passed. What the statement prints comes back
    as `output` (the end of it). Raises OSError when `python` cannot be started at all.
    """
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [python, "-c", statement], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - begun
        output, errors = _tail(out), _tail(err)
    if code == 0:
        return ImportProbe(statement, True, seconds, output=output)
    if code is None:
        error = f"did not end within {timeout:g} s"
    elif code < 0:
        error = f"was killed by signal {signal.Signals(-code).name}"
    else:
        lines = [line for line in errors.splitlines() if line.strip()]
        error = lines[-1].strip() if lines else f"ended with exit code {code}"
    return ImportProbe(statement, False, seconds, error=error, output=output)


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LAST_BYTES))
    return file.read().decode("utf-8", "replace").strip()
