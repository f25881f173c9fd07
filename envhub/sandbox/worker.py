"""What a worker does once it is confined: it serves calls of a submission, runs a program, or runs tests.

Only the standard library is used: no more than this folder can be imported in the process.
"""

import _sitebuiltins
import builtins
import json
import os
import sys

MYPY = False
if MYPY:
    from envhub.sandbox.checker import run_tests
    from envhub.sandbox.wire import TooLargeError, decode, encode, frame
else:  # the neighbour is found by the folder, see child.py
    from checker import run_tests
    from wire import TooLargeError, decode, encode, frame


def read_exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 16))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive(fd: int) -> "dict[str, object]":
    return receive_rest(fd, read_exactly(fd, 4))


def receive_rest(fd: int, size: bytes) -> "dict[str, object]":
    """A frame of which the first four bytes, its size, have come."""
    data = json.loads(read_exactly(fd, int.from_bytes(size, "big")))
    assert isinstance(data, dict)
    return data


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def send(fd: int, data: object) -> None:
    write(fd, frame(data))


def _described(error: BaseException) -> "list[object]":
    """What went wrong as `[outcome, message, built-in type, arguments]`; texts may be the candidate's and are capped."""
    if isinstance(error, SystemExit):
        return ["exited", "SystemExit", "SystemExit", []]
    if isinstance(error, MemoryError):
        return ["memory", "MemoryError", "MemoryError", []]
    builtin = "Exception"
    try:
        builtin = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        text = str(error)[:2000]
        arguments: list[object] = [value[:2000] if type(value) is str else value for value in error.args]
        if (
            not all(value is None or type(value) in (str, int, bool) for value in arguments)
            or len(repr(arguments)) > 4000
        ):
            arguments = [text]
    except BaseException:  # the candidate's exception class may do anything in __str__
        text, arguments = "", []
    outcome = "result_limit" if isinstance(error, TooLargeError) else "error"
    return [outcome, f"{type(error).__name__}: {text}" if text else type(error).__name__, builtin, arguments]


def _compiled(source: str) -> object:
    try:
        return compile(source.removeprefix("\ufeff"), "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        problem = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _CompileError(f"{type(error).__name__}: {problem}{line}") from None


class _CompileError(Exception):
    pass


def _module(name: str) -> "dict[str, object]":
    module = type(sys)(name)
    sys.modules[name] = module
    return module.__dict__


def _entry(namespace: "dict[str, object]", name: str) -> object:
    """A callable of that name, or the method of a class `Solution`."""
    found = namespace.get(name)
    if found is None and isinstance(namespace.get("Solution"), type):
        found = getattr(namespace["Solution"](), name, None)  # type: ignore[operator]
    if not callable(found):
        raise NameError(f"the source defines no function {name!r}")
    return found


class _KeptObjects(list[object]):
    """Objects that tests build from classes of the candidate, and refer to by number."""

    def put(self, value: object) -> object:
        self.append(value)
        return {"h": len(self) - 1}


def _as_started() -> None:
    """What a program finds that an interpreter was started with: its name, and what `site` adds to the built-in functions."""
    sys.argv[:] = ["solution.py"]
    sys.orig_argv[:] = ["python", "solution.py"]
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))


def _operations(namespace: "dict[str, object]") -> "dict[str, object]":
    """What tests ask of objects, by names that no function has, but for `setattr`."""

    def get(owner: object, name: str) -> object:
        if owner is None and name not in namespace:
            raise AttributeError(f"module 'solution' has no attribute {name!r}")
        found = namespace[name] if owner is None else getattr(owner, name)
        if isinstance(found, type) and issubclass(found, BaseException):
            return "an exception class", next(kind.__name__ for kind in found.__mro__ if kind.__module__ == "builtins")
        return found

    def call(called: object, arguments: "tuple[object, ...]", keywords: "dict[str, object]") -> object:
        return called(*arguments, **keywords)  # type: ignore[operator]

    return {"setattr": setattr, ".get": get, ".call": call, ".items": list}


def serve(channel: int, source: str, entry: str, budget: int) -> None:
    """Load the source, then answer one call after another until the channel closes."""
    nonce = receive(channel)["i"]
    _as_started()
    try:
        namespace = _module("solution")
        exec(_compiled(source), namespace)  # type: ignore[arg-type]
        function = _entry(namespace, entry) if entry else None
    except _CompileError as error:
        return send(channel, {"i": nonce, "e": ["syntax_error", str(error)]})
    except BaseException as error:  # candidate code raises whatever it likes
        return send(channel, {"i": nonce, "e": _described(error)})
    send(channel, {"i": nonce, "r": None})
    kept = _KeptObjects()
    operations = _operations(namespace)
    while True:
        request = receive(channel)
        leaving = False
        try:
            name = str(request.get("f", entry))
            arguments, keywords = (decode(request.get(part), handle=kept.__getitem__) for part in "ak")
            called = function if name == entry else operations.get(name) or _entry(namespace, name)
            value = called(*arguments, **(keywords or {}))  # type: ignore[operator, misc, arg-type]
            data = encode(value, budget) if name == entry else encode(value, budget, other=kept.put)
            reply = frame({"i": request["i"], "r": data})
            if len(reply) > budget:
                raise TooLargeError("larger than the limit of a result")
        except BaseException as error:  # candidate code raises whatever it likes
            leaving = isinstance(error, SystemExit)
            reply = frame({"i": request["i"], "e": _described(error)})
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # the candidate may have replaced or closed the stream
                continue
        write(channel, reply)
        if leaving:
            return None


def serve_tests(channel: int, program: str, names: "list[str]") -> None:
    """Run trusted tests; each call they make is asked for on the channel."""
    nonce = receive(channel)["i"]

    def ask(request: "dict[str, object]") -> "dict[str, object]":
        send(channel, {"i": nonce, "c": request})
        return receive(channel)

    send(channel, {"i": nonce, "v": run_tests(program, names, ask)})


def run_program(channel: int, source: str) -> None:
    """Run the source as a program; the label sent on failure only names the failure, the exit code decides."""
    _as_started()
    try:
        exec(_compiled(source), _module("__main__"))  # type: ignore[arg-type]
    except _CompileError as error:
        send(channel, {"i": "", "e": ["syntax_error", str(error)]})
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except SystemExit:
        raise
    except BaseException as error:  # candidate code raises whatever it likes
        send(channel, {"i": "", "e": _described(error)})
        traceback = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.exit(1)
