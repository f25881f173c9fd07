"""The process of a test program: assertions run here, the functions they call run in the submission's process.

Imported by the worker, so only the standard library is used, and little of it. No candidate code runs here: what comes
in are plain values and the names of built-in exceptions.
"""

import _thread
import builtins
import sys
from collections.abc import Callable

MYPY = False
if MYPY:
    from envhub.sandbox.wire import Handle, decode, encode
else:  # the neighbour is found by the folder, see child.py
    from wire import Handle, decode, encode

Ask = Callable[["dict[str, object]"], "dict[str, object]"]
_BUDGET = 64 << 20
_NAME = "tests.py"


class _CannotSendError(BaseException):
    """The tests hand over an argument that no process but theirs can hold."""


class _RemoteObject(Handle):
    """An object of the submission. Attributes can be set (`root.left = Node(2)`), never read."""

    def __init__(self, number: int, submission: "_Submission") -> None:
        super().__init__(number)
        self.__dict__["submission"] = submission

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["submission"].call("setattr", (self, name, value), {})


class _Submission:
    """Calls the submission's functions, one at a time, and keeps what was said of the errors that they raised."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._turn = _thread.allocate_lock()
        self.errors: list[tuple[BaseException, str]] = []

    def call(self, name: str, arguments: "tuple[object, ...]", keywords: "dict[str, object]") -> object:
        request = {"f": name, "a": self._encoded(list(arguments)), "k": self._encoded(keywords)}
        with self._turn:
            reply = self._ask(request)
        if "r" in reply:
            return decode(reply["r"], handle=lambda number: _RemoteObject(number, self))
        described = reply["e"]
        assert isinstance(described, list)
        error = _error(*described)
        self.errors.append((error, described[0]))
        raise error

    def function(self, name: str) -> "Callable[..., object]":
        def function(*arguments: object, **keywords: object) -> object:
            return self.call(name, arguments, keywords)

        function.__name__ = function.__qualname__ = name
        return function

    def _encoded(self, value: object) -> object:
        return encode(value, _BUDGET, other=_reference)


def _reference(value: object) -> object:
    if isinstance(value, Handle):
        return {"h": value.number}
    raise _CannotSendError(f"the tests hand a {type(value).__name__} to the submission; only plain values can be sent")


def _error(message: str, name: str, arguments: "list[object]") -> BaseException:
    """The exception that the submission raised, as the nearest built-in one. None that ends a loop gets through."""
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    if issubclass(kind, StopIteration | StopAsyncIteration):
        return RuntimeError(message)
    bases = iter(kind.__mro__)
    while True:  # up to Exception, which takes any arguments
        try:
            return next(bases)(*arguments)  # type: ignore[no-any-return]
        except (TypeError, ValueError, OverflowError):  # some take their own, such as UnicodeDecodeError
            continue


def run_tests(program: str, names: "list[str]", ask: Ask) -> "list[str]":
    """Run the tests with `names` bound to functions of the submission; `[verdict, detail]`.

    The verdict is `passed`, `failed` (an assertion of the tests), `error` (an error that the tests did not expect) or
    `cannot` (the tests cannot be run in this way at all).
    """
    submission = _Submission(ask)
    module = type(sys)("tests")
    sys.modules["tests"] = module
    module.__dict__.update({name: submission.function(name) for name in names})
    try:
        code = compile(program, _NAME, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return ["cannot", f"the tests are no Python: {error}"]
    try:
        exec(code, module.__dict__)
    except _CannotSendError as error:
        return ["cannot", str(error)]
    except BaseException as error:  # whatever the tests make of what the submission returned
        for raised, said in submission.errors:
            if raised is error:
                return ["error", said]
        kind = "failed" if isinstance(error, AssertionError) else "error"
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return [kind, f"{_line(error, program)}: {text}"[:2000]]
    return ["passed", ""]


def _line(error: BaseException, program: str) -> str:
    """The line of the tests that an error comes from."""
    step, number = error.__traceback__, 0
    while step is not None:
        number = step.tb_lineno if step.tb_frame.f_code.co_filename == _NAME else number
        step = step.tb_next
    lines = program.splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else "the tests"
