"""A test program and a submission, each in a process of its own: the calls of the one are carried to the other."""

import ast
import asyncio
import builtins
import secrets
import sys
from collections.abc import Awaitable
from typing import TypeVar

from envhub.errors import EnvironmentFault
from envhub.sandbox.base import CallResult, RunOutcome
from envhub.sandbox.box import Box, BrokenProtocolError, SubmissionError
from envhub.sandbox.joining import joined
from envhub.sandbox.wire import Handle, TooLargeError, encode

_T = TypeVar("_T")
REQUEST_BYTES = 64 << 20
_FINAL = ("BaseException", "BaseExceptionGroup", "GeneratorExit", "KeyboardInterrupt", "SystemExit")


class EndedError(Exception):
    """A process ended, or let go of its channel, before it had answered."""

    def __init__(self, box: Box) -> None:
        self.box = box


def completed(tests: str, entry: str) -> tuple[str, list[str]]:
    """The tests, with imports of the standard modules they lack, and the functions of the submission that they use.

    These are `entry`, and the names that the tests neither define nor import.
    """
    try:
        nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tests, [entry]
    used, modules, known = set(), set(), {entry, *dir(builtins)}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in sys.stdlib_module_names:
                modules.add(name)
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                known.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                known.add(name)
            case ast.alias(name=name, asname=alias):
                known.add(alias or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                known.add(name)
    lacking = sorted(modules - known)
    names = sorted(name for name in used - known - modules if not name.startswith("__"))
    return joined("".join(f"import {name}\n" for name in lacking), tests), [entry, *names]


async def judge(submission: Box, checker: Box, entry: str) -> CallResult:
    """Load the submission, run the tests, and carry their calls, one at a time. For the result see `Sandbox.check`.

    Raises `EndedError` when a process ends before its time, `EnvironmentFault` when the tests cannot be run.
    """
    try:
        loaded = await sent(submission, submission.ask({}))
        if loaded.outcome is not RunOutcome.ok:
            return loaded
        nonce = secrets.token_hex(8)
        message = await sent(checker, checker.exchange({"i": nonce}, REQUEST_BYTES))
        while True:
            match message:
                case {"i": str(given), "c": {"f": str(name), "a": arguments, "k": keywords}} if given == nonce:
                    reply = await carried(submission, name, arguments, keywords, strict=name == entry)
                    message = await sent(checker, checker.exchange(reply, REQUEST_BYTES))
                case {"i": str(given), "v": [str(verdict), str(detail)]} if given == nonce:
                    return _result(verdict, detail)
                case _:
                    raise EnvironmentFault(
                        f"a test program sent what is neither a call nor a verdict: {message!r:.200}"
                    )
    except SubmissionError as error:
        return error.result
    except (TooLargeError, BrokenProtocolError) as error:
        raise EnvironmentFault(f"a test program sent {error}") from error


async def carried(
    submission: Box, name: str, arguments: object, keywords: object, *, strict: bool = False
) -> dict[str, object]:
    """What tests get for a call; with `strict` a result that is no plain value fails them.

    Raises `SubmissionError` for a result that fails them whatever they say, `EndedError`.
    """
    answer = await sent(submission, submission.ask({"f": name, "a": arguments, "k": keywords}))
    return _reply(answer, strict, submission.limits.result_kb << 10)


async def sent(box: Box, exchange: Awaitable[_T]) -> _T:
    """What comes back from a box. Raises `EndedError` where nothing does."""
    try:
        return await exchange
    except (asyncio.IncompleteReadError, ConnectionError):
        raise EndedError(box) from None


def _reply(result: CallResult, entry: bool, budget: int) -> dict[str, object]:
    """What the tests get for a call. Raises for a result that fails them whatever they say."""
    if result.outcome is RunOutcome.ok:
        try:
            return {"r": encode(result.value, budget, other=_refused if entry else _handle)}
        except TooLargeError as error:
            raise SubmissionError(CallResult(RunOutcome.result_limit, error=str(error))) from None
    if result.outcome is not RunOutcome.error or not result.raised or result.raised[0] in _FINAL:
        raise SubmissionError(result)
    return {"e": [result.error, result.raised[0], list(result.raised[1:])]}


def _refused(value: object) -> object:
    text = f"returned {value!r}, which is no plain value; only built-in types can be compared"
    raise SubmissionError(CallResult(RunOutcome.error, error=text))


def _handle(value: object) -> object:
    return {"h": value.number} if isinstance(value, Handle) else _refused(value)


def _result(verdict: str, detail: str) -> CallResult:
    match verdict:
        case "passed":
            return CallResult(RunOutcome.ok, True)
        case "failed":
            return CallResult(RunOutcome.ok, False, error=detail)
        case "error":
            return CallResult(RunOutcome.error, error=detail)
    raise EnvironmentFault(f"a test program cannot be run: {detail}")
