"""The process tier: each submission in its own fresh process, confined by the kernel's per-process means.

Contents: empty environment, own session and temporary directory, resource limits, no new privileges, a system-call
filter, a private user for each slot where the hub runs as root, and Landlock where the kernel has it: no file can be
opened but those of the standard library (to read) and of the submission's own directory. Not promised: a bound on the
memory of all processes together; without Landlock, hiding of world-readable files; hiding of names and sizes of files.
"""

import asyncio
import contextlib
import os
import sys
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import landlock
from envhub.sandbox.base import (
    CallResult,
    ExecResult,
    Probe,
    RunOutcome,
    Sandbox,
    SandboxLimits,
    Session,
    Snapshot,
    TestResult,
)
from envhub.sandbox.box import USERS, Box, SubmissionError
from envhub.sandbox.cgroups import Slots
from envhub.sandbox.collecting import collect
from envhub.sandbox.judging import EndedError, completed, judge
from envhub.sandbox.probes import PROOF, broken_of_session, broken_promises, run_probes
from envhub.sandbox.seccomp import supported
from envhub.sandbox.sessions import BoxSession
from envhub.sandbox.unit_tests import prepared, run_unit_tests, test_limits
from envhub.sandbox.wire import MAX_DEPTH, TooLargeError, encode

_START_SECONDS = 60.0
_MOST_AT_ONCE = len(USERS) // 2  # `check` takes two processes, each of a user of its own
_ARGUMENT_BYTES = 64 << 20


class ProcessSandbox(Sandbox):
    """The `process` tier. At most `concurrency` submissions run at once for each event loop; the others wait.

    Raises `UserError` for a concurrency that is not from 1 to 256.
    """

    tier = "process"
    hides_files = False
    """Whether files of the machine are out of sight without Landlock."""

    def __init__(self, concurrency: int | None = None) -> None:
        if concurrency is not None and not 1 <= concurrency <= _MOST_AT_ONCE:
            raise UserError(f"the concurrency of a sandbox is from 1 to {_MOST_AT_ONCE}, not {concurrency}")
        self._concurrency = concurrency or min(2 * (os.cpu_count() or 1), _MOST_AT_ONCE)
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._turns = weakref.WeakKeyDictionary()
        self._running: set[asyncio.Task[Any]] = set()
        self._sessions: set[BoxSession] = set()
        self._checked = self._sessions_checked = False
        self._slots = Slots()

    @property
    def hides_processes(self) -> bool:
        """Whether what runs outside is out of reach; without a private user that depends on the kernel's settings."""
        return os.geteuid() == 0

    @property
    def unbounded(self) -> str:
        """Why the memory of all processes of a submission together is not bounded here; empty where it is."""
        return self._slots.missing if os.geteuid() == 0 else "only root can bound it"

    async def start(self) -> None:
        if self._checked:
            return
        await asyncio.to_thread(collect)
        if missing := self.missing():
            raise EnvironmentFault(f"the {self.tier} sandbox {missing}")
        try:
            broken = await broken_promises(self, hides_processes=self.hides_processes)
        except EnvironmentFault as problem:
            raise EnvironmentFault(f"the {self.tier} sandbox cannot work here: {problem}") from problem
        if broken:
            raise EnvironmentFault(f"the {self.tier} sandbox does not hold what it promises: {', '.join(broken)}")
        self._checked = True

    @classmethod
    def missing(cls) -> str:
        """What this machine lacks for the tier, to be said after its name; empty where nothing is known to be missing."""
        return "" if sys.platform == "linux" and supported() else "needs Linux on x86_64 or aarch64"

    async def close(self) -> None:
        await self._end_running()
        await asyncio.to_thread(self._slots.close)

    async def _end_running(self) -> None:
        for session in tuple(self._sessions):
            session.end()
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.get_loop().call_soon_threadsafe(task.cancel)
        here = [task for task in running if task.get_loop() is asyncio.get_running_loop()]
        await asyncio.gather(*here, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for a submission's turn; its boxes are open inside only."""
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._concurrency))
        async with turn:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                yield
            finally:
                self._running.discard(task)

    async def _new_box(self, limits: SandboxLimits, *, session: bool = False) -> Box:
        return Box(limits, self._slots, session=session)

    @contextlib.asynccontextmanager
    async def _box(
        self,
        source: str,
        entry: str | None,
        limits: SandboxLimits,
        stdin: str = "",
        names: Sequence[str] | None = None,
    ) -> AsyncIterator[Box]:
        box = await self._new_box(limits)
        try:
            async with _failing(box):
                async with asyncio.timeout(_START_SECONDS):
                    await box.start(source, entry, stdin.encode("utf-8", "surrogatepass"), names)
                yield box
        finally:
            await box.finish()

    async def open_session(self, limits: SandboxLimits | None = None, *, snapshot: Snapshot | None = None) -> Session:
        await self._prove_sessions()
        return await self._open_session(limits or SandboxLimits(), snapshot)

    async def _prove_sessions(self) -> None:
        """Before the first session, try out what they promise. Raises `EnvironmentFault` where they do not keep it."""
        if self._sessions_checked:
            return
        async with await self._open_session(PROOF, None) as session:
            broken = await broken_of_session(session, hides_processes=self.hides_processes)
        if broken:
            raise EnvironmentFault(
                f"sessions of the {self.tier} sandbox do not hold what it promises: {', '.join(broken)}"
            )
        self._sessions_checked = True

    async def _open_session(self, limits: SandboxLimits, snapshot: Snapshot | None) -> BoxSession:
        box = await self._new_box(limits, session=True)
        try:
            async with _failing(box):
                async with asyncio.timeout(_START_SECONDS):
                    await box.start("", None)
            session = BoxSession(box, limits, self._turn, self._sessions.discard)
            if snapshot is not None:
                await session.restore(snapshot)
        except BaseException:
            await box.finish()
            raise
        self._sessions.add(session)
        return session

    async def calls(
        self, source: str, entry: str, calls: Sequence[Sequence[Any]], limits: SandboxLimits | None = None
    ) -> list[CallResult]:
        limits = limits or SandboxLimits()
        results: list[CallResult] = []
        if not calls:
            return results
        if _source_problem(source, limits):
            return [CallResult(RunOutcome.source_limit, error=_source_problem(source, limits))] * len(calls)
        requests = [_encoded_arguments(arguments) for arguments in calls]
        async with self._turn(), self._box(source, entry, limits) as box:
            broken: CallResult | None = None
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + limits.wall_seconds):
                    broken = await _converse(box, requests, results)
            except TimeoutError:
                broken = CallResult(RunOutcome.timeout, error=f"ran longer than {limits.wall_seconds:g} s")
            box.stop()
            async with asyncio.timeout(_START_SECONDS):
                await box.ended()
            if len(results) < len(calls):
                if broken is None or box.overflow:
                    outcome, error = box.outcome()
                    broken = CallResult(outcome, error=error)
                results += [broken] * (len(calls) - len(results))
        last = results[-1]
        results[-1] = replace(last, stdout=_text(box.stdout), stderr=_text(box.stderr))
        return results

    async def check(self, source: str, entry: str, tests: str, limits: SandboxLimits | None = None) -> CallResult:
        limits = limits or SandboxLimits()
        if problem := _source_problem(source, limits):
            return CallResult(RunOutcome.source_limit, error=problem)
        tests, names = completed(tests, entry)
        async with (
            self._turn(),
            self._box(source, entry, limits) as submission,
            self._box(tests, None, limits, names=names) as checker,
        ):
            ended: Box | None = None
            try:
                async with asyncio.timeout(limits.wall_seconds):
                    result = await judge(submission, checker, entry)
            except TimeoutError:
                result = CallResult(RunOutcome.timeout, error=f"ran longer than {limits.wall_seconds:g} s")
            except EndedError as error:
                ended = error.box
            for box in (submission, checker):
                box.stop()
                async with asyncio.timeout(_START_SECONDS):
                    await box.ended()
            if submission.overflow:
                ended = submission
            if ended is not None:
                outcome, said = ended.outcome()
                result = CallResult(outcome, error=said)
            return result

    async def unit_tests(
        self, source: str, tests: str, limits: SandboxLimits | None = None, *, module: str = "solution"
    ) -> list[TestResult]:
        limits = limits or SandboxLimits()
        given = prepared(tests, module)
        if problem := _source_problem(source, limits):
            return [TestResult("all tests", False, RunOutcome.source_limit, problem)]
        async with (
            self._turn(),
            self._box(source, "", limits) as submission,
            await self.open_session(test_limits(limits)) as session,
        ):
            await session.restore(given.files)
            assert isinstance(session, BoxSession)
            return await run_unit_tests(submission, session, given, limits)

    async def run_program(self, source: str, stdin: str = "", limits: SandboxLimits | None = None) -> ExecResult:
        limits = limits or SandboxLimits()
        if problem := _source_problem(source, limits):
            return ExecResult(RunOutcome.source_limit, 1, "", problem, 0.0)
        async with self._turn(), self._box(source, None, limits, stdin) as box:
            timed_out = False
            try:
                async with asyncio.timeout(limits.wall_seconds):
                    await box.ended()
            except TimeoutError:
                timed_out = True
                box.stop()
                async with asyncio.timeout(_START_SECONDS):
                    await box.ended()
            seconds = time.monotonic() - box.started
            label = await box.label()
        code = int(box.status["code"])
        outcome = box.outcome()[0]
        if timed_out:
            outcome = RunOutcome.timeout
        elif outcome is RunOutcome.exited and code >= 0:
            outcome = RunOutcome.ok if code == 0 else label
        stdout = _text(box.stdout)
        if outcome is RunOutcome.ok and not _is_utf8(box.stdout):
            outcome = RunOutcome.error
        return ExecResult(outcome, code, stdout, _text(box.stderr), seconds)

    async def self_test(self) -> list[Probe]:
        probes = await run_probes(
            self,
            self.unbounded,
            hides_processes=self.hides_processes,
            hides_files=self.hides_files or landlock.abi() > 0,
        )
        async with await self._open_session(PROOF, None) as session:
            broken = await broken_of_session(session, hides_processes=self.hides_processes)
        return [*probes, Probe("the same for programs and sessions", True, not broken, ", ".join(broken))]


@contextlib.asynccontextmanager
async def _failing(box: Box) -> AsyncIterator[None]:
    """What fails in speaking to a box is the sandbox's fault. Raises `EnvironmentFault`."""
    try:
        yield
    except (OSError, EOFError, TimeoutError) as error:
        await box.finish()  # with the last that it said
        said = box.complaint()
        raise EnvironmentFault(f"the sandbox failed ({type(error).__name__}: {error}): {said}") from error


async def _converse(box: Box, requests: Sequence[object], results: list[CallResult]) -> CallResult | None:
    """Fill `results` call by call; returns why the process cannot go on, None when it ended or all is done."""
    try:
        loaded = await box.ask({})
        if loaded.outcome is not RunOutcome.ok:
            return loaded
        for arguments in requests:
            results.append(await box.ask({"a": arguments}))
            if results[-1].outcome is RunOutcome.exited:
                return results[-1]
    except SubmissionError as error:
        return error.result
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return None


def _source_problem(source: str, limits: SandboxLimits) -> str:
    size = len(source.encode("utf-8", "surrogatepass"))
    return f"the source is {size} bytes long, over {limits.source_kb} kB" if size > limits.source_kb << 10 else ""


def _encoded_arguments(arguments: Sequence[Any]) -> object:
    if not is_plain(list(arguments)):
        raise UserError(f"an argument of a sandboxed call is no plain value: {repr(arguments)[:200]}")
    try:
        return encode(list(arguments), _ARGUMENT_BYTES)
    except TooLargeError as error:
        raise UserError(f"an argument of a sandboxed call is too large: {error}") from error


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether a value can be handed to a submission; see `Sandbox.calls` for the types."""
    if depth > MAX_DEPTH:
        return False
    if type(value) in (list, tuple, set, frozenset):
        return all(is_plain(item, depth + 1) for item in value)  # type: ignore[attr-defined]
    if type(value) is dict:
        return all(is_plain(item, depth + 1) for pair in value.items() for item in pair)
    return value is None or type(value) in (bool, int, float, complex, str, bytes, range)


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace")


def _is_utf8(data: bytearray) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
