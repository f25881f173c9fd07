"""The process of a test program: assertions run here, the functions they call run in the submission's process.

Imported by the worker, so only the standard library is used, and little of it. No candidate code runs here: what comes
in are plain values and the names of built-in exceptions.
"""

import _thread
import builtins
import sys
from collections.abc import Callable, Iterator

MYPY = False
if MYPY:
    from envhub.sandbox.wire import Handle, decode, encode
else:  # the neighbour is found by the folder, see child.py
    from wire import Handle, decode, encode

Ask = Callable[["dict[str, object]"], "dict[str, object]"]
_BUDGET = 64 << 20
_NAME = "tests.py"
_EXCEPTION = "an exception class"


class _CannotSendError(BaseException):
    """The tests hand over an argument that no process but theirs can hold."""


class _RemoteObject(Handle):
    """An object of the submission: its attributes are read and set there, and it is called there.

    It is never compared there, and has no truth: an object of the submission does not say that a test holds.
    """

    def __init__(self, number: int, submission: "Submission") -> None:
        super().__init__(number)
        self.__dict__["submission"] = submission

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["submission"].call("setattr", (self, name, value), {})

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["submission"].attribute(self, name)

    def _special(self, name: str, *arguments: object) -> object:
        bound = self.__dict__["submission"].attribute(self, name)
        return bound(*arguments)

    def __call__(self, *arguments: object, **keywords: object) -> object:
        return self.__dict__["submission"].call(".call", (self, arguments, keywords), {})

    def __len__(self) -> int:
        return self._special("__len__")  # type: ignore[return-value]

    def __getitem__(self, key: object) -> object:
        return self._special("__getitem__", key)

    def __setitem__(self, key: object, value: object) -> None:
        self._special("__setitem__", key, value)

    def __contains__(self, item: object) -> bool:
        return self._special("__contains__", item) is True

    def __iter__(self) -> "Iterator[object]":
        return iter(self.__dict__["submission"].call(".items", (self,), {}))

    def __str__(self) -> str:
        return str(self._special("__str__"))

    def __repr__(self) -> str:
        return str(self._special("__repr__"))

    def __bool__(self) -> bool:
        raise AssertionError("an object of the submission is no True")

    def __enter__(self) -> object:
        return self._special("__enter__")

    def __exit__(self, *_: object) -> None:
        self._special("__exit__", None, None, None)


class Submission:
    """Calls the submission's functions, one at a time, and keeps what was said of the errors that they raised."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._turn = _thread.allocate_lock()
        self.errors: list[tuple[BaseException, str]] = []
        self.lacking = ""
        self._exceptions: dict[str, type[BaseException]] = {}

    def call(self, name: str, arguments: "tuple[object, ...]", keywords: "dict[str, object]") -> object:
        request = {"f": name, "a": self._encoded(list(arguments)), "k": self._encoded(keywords)}
        with self._turn:
            reply = self._ask(request)
        if "r" in reply:
            return decode(reply["r"], handle=lambda number: _RemoteObject(number, self))
        described = reply["e"]
        assert isinstance(described, list)
        known = self._exceptions.get(described[0].partition(":")[0])
        error = _error(*described) if known is None else known(described[0].partition(": ")[2])
        self.errors.append((error, described[0]))
        raise error

    def attribute(self, owner: "_RemoteObject | None", name: str) -> object:
        """An attribute of an object, or of the submitted module itself. Raises `AttributeError`.

        An exception class is one of ours with its name, below the nearest built-in one.
        """
        try:
            found = self.call(".get", (owner, name), {})
        except AttributeError:
            if owner is None and not name.startswith("_"):  # whoever inspects a module asks for such
                self.lacking = self.lacking or name
            raise
        if isinstance(found, tuple) and len(found) == 2 and found[0] == _EXCEPTION:
            base = getattr(builtins, found[1], Exception)
            if name not in self._exceptions:
                self._exceptions[name] = type(name, (base if issubclass(base, Exception) else Exception,), {})
            return self._exceptions[name]
        return found

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
    submission = Submission(ask)
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
