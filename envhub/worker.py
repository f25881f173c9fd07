"""The child process of `envhub.offload.ProcessHost`: `python -m envhub.worker`.

Requests and answers are length-prefixed pickles on the process's original standard input and output; what the user's
code prints goes to standard error instead, so that it cannot break the protocol.
"""

import asyncio
import inspect
import os
import pickle
import struct
import sys
import traceback
from typing import Any, BinaryIO

_HEADER = struct.Struct("!Q")


def main() -> int:
    """Serve requests until the parent closes the pipe."""
    _die_with_parent()
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    # In the parent's order: libraries append folders there whose modules must not come before the installed ones.
    sys.path[:] = [*sys.argv[1:], *(path for path in sys.path if path not in sys.argv[1:])]
    _answer(sink, ("ok", None))
    held: Any = None
    loop = asyncio.new_event_loop()
    while (request := _read(source)) is not None:
        try:
            operation, target, *rest = request
            if operation == "make":
                from envhub.specs import load_environment

                held, value = load_environment(target)(rest[0]), None
            elif operation == "method":
                value = _run(loop, getattr(held, target), *rest)
            else:
                from envhub.specs import load_object

                value = _run(loop, load_object(target), *rest)
            _answer(sink, ("ok", value))
        except Exception as problem:
            _answer(sink, _failure(problem))
    return 0


def _run(loop: asyncio.AbstractEventLoop, function: Any, args: Any, kwargs: Any) -> Any:
    value = function(*args, **kwargs) if callable(function) else function
    return loop.run_until_complete(value) if inspect.isawaitable(value) else value


def _failure(problem: Exception) -> tuple[str, Any, str]:
    trace = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # an exception that cannot travel is replaced by one that can, with the same text
        from envhub.guard import described

        return ("error", RuntimeError(described(problem)), trace)
    return ("error", problem, trace)


def _answer(sink: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    sink.write(_HEADER.pack(len(data)) + data)
    sink.flush()


def _read(source: BinaryIO) -> Any:
    header = source.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    return pickle.loads(source.read(_HEADER.unpack(header)[0]))


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, also while user code hangs (Linux)."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
