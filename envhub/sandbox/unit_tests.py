"""Unit tests and a submission, in a box each: the tests' calls are carried to the submission, their results come here."""

import asyncio
import contextlib
import functools
import importlib.util
import io
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox.base import RunOutcome, SandboxLimits, Snapshot, TestResult
from envhub.sandbox.box import Box, BrokenProtocolError, SubmissionError, read_frame
from envhub.sandbox.judging import REQUEST_BYTES, EndedError, carried, sent
from envhub.sandbox.sessions import BoxSession
from envhub.sandbox.wire import TooLargeError, frame

_HERE = Path(__file__).parent
_OWN = ("unit_driver.py", "checker.py", "wire.py", "worker.py")
_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_LEXERS = ("__init__", "_mapping", "diff", "python")  # of pygments, which has hundreds
_FILE = "test_solution.py"


@dataclass(frozen=True)
class UnitTests:
    """What the box of the tests begins with, and how they are run."""

    files: Snapshot
    module: str
    framework: str


def prepared(tests: str, module: str) -> UnitTests:
    """The tests with all that runs them. Raises `UserError` for a module's name that is none, and where pytest is missing."""
    if not module.isidentifier():
        raise UserError(f"the tested module has a name that can be imported, not {module!r}")
    if f"{module}.py" in (_FILE, *_OWN) or module in _PACKAGES:
        raise UserError(f"the tested module cannot be called {module!r}, which is a name of what tests it")
    framework = "pytest" if importlib.util.find_spec("pytest") is not None else "unittest"
    if framework == "unittest" and "pytest" in tests:
        raise UserError("these unit tests need pytest: install it beside envhub")
    out = io.BytesIO(_runner(framework))
    with tarfile.open(fileobj=out, mode="a") as archive:
        _add(archive, _FILE, tests.encode("utf-8", "surrogatepass"))
    return UnitTests(Snapshot(out.getvalue()), module, framework)


@functools.cache
def _runner(framework: str) -> bytes:
    """An archive of what runs tests: our own part and, for pytest, its packages with what they were compiled to."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in _OWN:
            archive.add(_HERE / name, name)
        for package in _PACKAGES if framework == "pytest" else ():
            for file, inside in _files_of(package):
                archive.add(file, inside)
    return out.getvalue()


def _files_of(package: str) -> Iterator[tuple[Path, str]]:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise EnvironmentFault(f"the package {package}, which pytest needs, is not installed as files")
    if not found.submodule_search_locations:
        yield Path(found.origin), f"{package}.py"
        return
    top = Path(found.submodule_search_locations[0])
    for file in sorted(top.rglob("*.py*")):
        inside = file.relative_to(top)
        stem = file.name.partition(".")[0]
        if file.is_file() and not (package == "pygments" and inside.parts[0] == "lexers" and stem not in _LEXERS):
            yield file, f"{package}/{inside.as_posix()}"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def test_limits(limits: SandboxLimits) -> SandboxLimits:
    """The limits of the tests' box, where there is room for what runs them."""
    own = SandboxLimits()
    return limits.model_copy(update={
        "wall_seconds": limits.wall_seconds + own.wall_seconds, "cpu_seconds": limits.cpu_seconds + own.cpu_seconds,
        "memory_mb": max(limits.memory_mb, own.memory_mb), "total_mb": max(limits.total_mb, own.total_mb),
        "processes": max(limits.processes, own.processes), "disk_mb": max(limits.disk_mb, own.disk_mb),
        "file_mb": max(limits.file_mb, own.file_mb), "open_files": max(limits.open_files, own.open_files),
    })  # fmt: skip


test_limits.__test__ = False  # type: ignore[attr-defined] # of pytest


class _Told:
    """What the tests' box has told: how many tests there are, those that ended, and whether it was done."""

    def __init__(self) -> None:
        self.count = 0
        self.results: list[TestResult] = []
        self.done: dict[str, Any] | None = None

    def take(self, message: Any) -> bool:
        """Whether a message told something."""
        match message:
            case {"n": int(count)}:
                self.count = count
            case {"t": [str(name), "skipped", str()]}:
                self.count -= 1
            case {"t": [str(name), str(outcome), str(said)]}:
                self.results.append(TestResult(name, outcome == "passed", message=said))
            case {"d": dict(found)}:
                self.done = found
            case _:
                return False
        return True

    def ended_by(self, outcome: RunOutcome, said: str) -> list[TestResult]:
        """The results, where something ended the tests before they were done."""
        left = max(1, self.count - len(self.results))
        return [*self.results, *[TestResult("not ended", False, outcome, said)] * left]


async def run_unit_tests(
    submission: Box, session: BoxSession, given: UnitTests, limits: SandboxLimits
) -> list[TestResult]:
    """For the results see `Sandbox.unit_tests`."""
    told = _Told()
    near, far = socket.socketpair()
    running: asyncio.Task[Any] | None = None
    with far:
        reader, writer = await asyncio.open_unix_connection(sock=near)
        try:
            argv = ["python3", "-X", "utf8", "unit_driver.py", given.module, _FILE, given.framework]
            running = asyncio.create_task(session.converse(argv, far.fileno(), session.limits.wall_seconds))
            async with asyncio.timeout(limits.wall_seconds):
                loaded = await sent(submission, submission.ask({}))
                if loaded.outcome is not RunOutcome.ok:
                    return told.ended_by(loaded.outcome, loaded.error)
                await _carry(submission, reader, writer, running, told)
        except TimeoutError:
            return told.ended_by(RunOutcome.timeout, f"ran longer than {limits.wall_seconds:g} s")
        except SubmissionError as error:
            return told.ended_by(error.result.outcome, error.result.error)
        except EndedError:
            submission.stop()
            await submission.ended()
            return told.ended_by(*submission.outcome())
        except (asyncio.IncompleteReadError, ConnectionError, TooLargeError, BrokenProtocolError):
            assert running is not None
            result = await running
            last = (result.stderr or result.stdout).strip().rpartition("\n")[2]
            raise EnvironmentFault(
                f"the unit tests cannot be run: {result.outcome.value}, exit code {result.exit_code}: {last}"
            ) from None
        finally:
            writer.close()
            if running is not None:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError, EnvironmentFault):
                    await running
    assert told.done is not None
    if told.results:
        return told.results
    if told.done.get("lacking"):
        return [TestResult("all tests", False, RunOutcome.error, f"the submission defines no {told.done['lacking']!r}")]
    raise EnvironmentFault(f"the unit tests cannot be run: {told.done.get('broken') or 'there are none'}")


async def _carry(
    submission: Box,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    running: "asyncio.Task[Any]",
    told: _Told,
) -> None:
    """Carry the calls of the tests until they are done. Raises as `read_frame` does where they end before that."""
    while told.done is None:
        waiting = asyncio.ensure_future(read_frame(reader, REQUEST_BYTES))
        await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            raise ConnectionError
        message = waiting.result()
        match message:
            case {"c": {"f": str(name), "a": arguments, "k": keywords}}:
                reply = await carried(submission, name, arguments, keywords)
                writer.write(frame(reply))
                await writer.drain()
            case _ if not told.take(message):
                raise EnvironmentFault(f"unit tests sent what is neither a call nor a result: {message!r:.200}")
