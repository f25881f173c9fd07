"""Handling of values and exceptions of user code, which may be of any type and misbehave when they are looked at."""

import numbers
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from envhub.errors import EnvhubError, UserError

MAX_REWARD = 1e15


class EscapeError(Exception):
    """Stands for what user code raised that is no Exception (SystemExit, CancelledError, …), where that may not travel.

    Its text and its traceback are those of `problem`.
    """

    def __init__(self, problem: BaseException) -> None:
        super().__init__(described(problem))
        self.problem = problem
        self.__traceback__ = trace_of(problem)


def text_of(value: Any) -> str:
    """`str(value)`; where that fails, what type it is."""
    return _safely(str, value)


def shown(value: Any, limit: int = 120) -> str:
    """`repr(value)`, at most `limit` characters; where that fails, what type it is."""
    text = _safely(repr, value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def described(problem: BaseException) -> str:
    """`"Type: message"` of an exception, also where its message fails."""
    if isinstance(problem, EscapeError):
        problem = problem.problem
    text, kind = text_of(problem), _kind(problem)
    return f"{kind}: {text}" if text else kind


def trace_of(problem: BaseException) -> TracebackType | None:
    """The traceback of an exception, also where its class has an attribute `__traceback__` of its own."""
    trace: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(problem)
    return trace


def require(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    """Raise TypeError, which says `what` it is, where a value is of no such type."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {_names(kind, ' or ')}, not {shown(value)}")


def require_all(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    """Raise TypeError, which says `what` it is, where a value is no tuple of such a type."""
    if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
        raise TypeError(f"{what} a tuple of {_names(kind, ' and ')}, not {shown(value)}")


def raised_at(problem: BaseException | None) -> str:
    """`" (file:line)"` of where an exception was raised, or an empty string."""
    trace = None if problem is None else trace_of(problem)
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


@contextmanager
def converted(convert: Callable[[BaseException], Exception], passing: type[Exception] = EnvhubError) -> Iterator[None]:
    """Turn whatever user code in the block raises into `convert` of it. Errors of the type `passing` travel on."""
    try:
        yield
    except passing:
        raise
    except BaseException as problem:  # SystemExit and the like, too
        if is_interruption(problem):
            raise
        raise convert(problem) from problem


def authors_mistake(what: str) -> AbstractContextManager[None]:
    """For user code that belongs to no episode: what it raises becomes a UserError that names `what` and the line."""
    return converted(lambda problem: UserError(f"{what} raised {described(problem)}{raised_at(problem)}"), UserError)


def _safely(convert: Callable[[Any], str], value: Any) -> str:
    try:
        return convert(value)
    except BaseException as problem:
        if is_interruption(problem):
            raise
        return f"<{_kind(value)}: its text fails with {_kind(problem)}>"


def _kind(value: Any) -> str:
    """The name of a value's type, whatever its metaclass says."""
    return type.__dict__["__name__"].__get__(type(value))  # type: ignore[no-any-return]


def _names(kind: type | tuple[type, ...], between: str) -> str:
    return between.join(item.__name__ for item in (kind if isinstance(kind, tuple) else (kind,)))


def finite(value: Any) -> float | None:
    """The number as a float; None where it is no real number, not finite, or beyond ±MAX_REWARD.

    A bool is no number here. The bound keeps sums and squares of rewards finite in float32, in which models compute.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except BaseException as problem:
        if is_interruption(problem):
            raise
        return None
    return number if -MAX_REWARD <= number <= MAX_REWARD else None


def is_interruption(problem: BaseException) -> bool:
    """Whether it is the user's Ctrl-C that arrived while other code ran, and not that code's own KeyboardInterrupt."""
    if not isinstance(problem, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True  # raised from C in the frame that happened to run: nothing tells the two apart
    return raised_by_runner(problem)


def raised_by_runner(problem: KeyboardInterrupt) -> bool:
    """Whether asyncio's runner raised it, which it does for a SIGINT only."""
    from asyncio import runners

    trace = trace_of(problem)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == runners.__file__
