"""What every sandbox tier offers: run a submission under limits, and say how each run ended."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from envhub.errors import EnvhubError


class SandboxLimits(BaseModel):
    """Limits of one submission. Wall and CPU time cover loading and all of its calls together."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    wall_seconds: float = Field(10.0, gt=0, description="seconds in all")
    cpu_seconds: int = Field(5, ge=1, description="seconds of CPU time of each process")
    memory_mb: int = Field(1024, ge=64, description="address space of each process, in MB")
    total_mb: int = Field(
        512, ge=16, description="memory of all processes and files in memory together, in MB, where cgroups bound it"
    )
    processes: int = Field(16, ge=1, description="processes and threads at one time")
    file_mb: int = Field(10, ge=0, description="size of one file, in MB")
    disk_mb: int = Field(64, ge=1, description="size of all files together, in MB")
    open_files: int = Field(64, ge=16, description="files that a process has open at one time")
    output_kb: int = Field(1024, ge=1, description="what it prints to stdout, and to stderr, in kB")
    result_kb: int = Field(1024, ge=1, description="size of one returned value, in kB")
    source_kb: int = Field(256, ge=1, description="size of the submission, in kB")


class RunOutcome(str, Enum):
    """How a call or a program ended. Everything but `ok` is the submission's own failure.

    A failure of the sandbox itself is no outcome: it raises `EnvironmentFault`.
    """

    ok = "ok"
    error = "error"
    exited = "exited"
    timeout = "timeout"
    memory = "memory"
    output_limit = "output_limit"
    result_limit = "result_limit"
    source_limit = "source_limit"
    syntax_error = "syntax_error"


@dataclass(frozen=True)
class CallResult:
    """One call of a function. `value` means something only when the outcome is `ok`.

    `stdout` and `stderr` are what the process had printed, in all, by the time the last call ended; they come with
    the last result only. `raised` is the nearest built-in exception type of an error, by name, and its arguments.
    """

    outcome: RunOutcome
    value: Any = None
    error: str = ""
    stdout: str = ""
    stderr: str = ""
    raised: tuple[Any, ...] = ()


@dataclass(frozen=True)
class ExecResult:
    """One run of a program. `ok` means exit code 0; `exit_code` is negative for a signal; `seconds` is wall time."""

    outcome: RunOutcome
    exit_code: int
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class TestResult:
    """One unit test. It `passed`, or `outcome` and `message` say why not; an outcome of `ok` means that it failed by itself."""

    __test__ = False  # of pytest

    name: str
    passed: bool
    outcome: RunOutcome = RunOutcome.ok
    message: str = ""


@dataclass(frozen=True)
class Probe:
    """One property of a sandbox, tried out: whether the tier promises it here, and whether it holds."""

    name: str
    promised: bool
    holds: bool
    detail: str = ""


class SessionError(EnvhubError):
    """What a session was asked for cannot be done: a path that is no file, a file without room, a session that has ended.

    `errno` is the error of the system call that failed, where one did.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


@dataclass(frozen=True)
class Snapshot:
    """The files of a session's home, as an uncompressed tar archive that its programs may have had a hand in."""

    archive: bytes = field(repr=False)


class Session(ABC):
    """A box that lives through several programs, which share its files and may leave others running.

    `limits` are those of the box as a whole, but for wall time, CPU time and output, which are of each program. `home` is
    its working directory, as its programs name it. Calls wait for each other. Use it in `async with`, or close it.
    """

    limits: SandboxLimits
    home: str
    ended: str
    """Why nothing more can run in it; empty while it lives."""

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        wall_seconds: float | None = None,
    ) -> ExecResult:
        """Run a program until it ends, and say how. It runs in `cwd`, which is relative to the home.

        The outcome is `ok` for exit code 0, `exited` for any other, and for a program that is not there (exit code 127) or
        cannot be started (126). Past its output or its wall time every program of the session is killed.
        `env` adds to PATH, HOME, TMPDIR and LANG; nothing of the caller's environment is there.
        Where the session has ended, or ends meanwhile, the outcome is why, and stderr says so.

        Raises `SessionError` for arguments that no program can be given, `EnvironmentFault` when the sandbox failed.
        """

    @abstractmethod
    async def attach(self, argv: Sequence[str], terminal: int, env: Mapping[str, str]) -> ExecResult:
        """Run a program on a terminal, given by its descriptor, until it ends; nothing bounds its output or its wall time.

        Raises what `exec` does.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Kill all that its programs left running. Raises `SessionError` where only closing it does that."""

    @abstractmethod
    async def write(self, path: str, data: str | bytes, *, executable: bool = False) -> None:
        """Write a file, and the folders that it is in. `path` is relative to the home. Raises `SessionError`."""

    @abstractmethod
    async def read(self, path: str, *, most_kb: int | None = None) -> bytes:
        """The bytes of a file of at most so many kB (default: the limit of a file's size). Raises `SessionError`."""

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """All files of the home as they are now; programs that run may be writing them. Raises `SessionError`."""

    @abstractmethod
    async def restore(self, snapshot: Snapshot) -> None:
        """Add the files of a snapshot to the home. Raises `SessionError` where they have no room there."""

    @abstractmethod
    async def close(self) -> None:
        """Kill all that runs in it, and remove its files. Calling it again changes nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sandbox(ABC):
    """Runs untrusted Python, and programs of any kind. Each submission gets new processes and a new directory, both gone afterwards.

    Nothing the submission may do decides a verdict: values come back to be compared by the caller, and expected values
    are never passed in.
    """

    tier: str

    @abstractmethod
    async def start(self) -> None:
        """Make the sandbox ready. Calling it again changes nothing. Raises `EnvironmentFault` when it cannot work."""

    @abstractmethod
    async def close(self) -> None:
        """End everything that still runs. Calling it again changes nothing."""

    @abstractmethod
    async def calls(
        self, source: str, entry: str, calls: Sequence[Sequence[Any]], limits: SandboxLimits | None = None
    ) -> list[CallResult]:
        """Load `source` once in a new process and call `entry` with each list of arguments in turn.

        `entry` names a function, or a method of a class `Solution`. Arguments are None, bool, int, float, complex, str,
        bytes, range, and lists, tuples, sets, frozensets and dicts of those; returned objects of other types come back as a
        value equal to no other.
        The next arguments are sent only after the last answer. When the process ends, the calls that are left get the
        outcome that ended it.

        Raises `EnvironmentFault` when the sandbox failed, `UserError` for arguments that cannot be sent.
        """

    @abstractmethod
    async def check(self, source: str, entry: str, tests: str, limits: SandboxLimits | None = None) -> CallResult:
        """Run a test program that calls functions of `source`: the two have a process each, and only plain values,
        copied, go from one to the other.

        In `tests`, the name `entry` and every other name that nothing there defines are functions of the submission;
        modules of the standard library need no import.
        The value is whether all assertions held, `error` the one that did not. An outcome other than `ok` is an error
        that the tests did not expect, an object returned by `entry` that is no plain value, or an end of either process.
        Results of the other functions may be objects, for the tests to set attributes of and to hand back.

        Raises `EnvironmentFault` when the sandbox failed, or the tests cannot be run in this way.
        """

    @abstractmethod
    async def unit_tests(
        self, source: str, tests: str, limits: SandboxLimits | None = None, *, module: str = "solution"
    ) -> list[TestResult]:
        """Run a file of unit tests (pytest's, or unittest's) that imports `source` as `module`.

        The two have a box each, and only values go from one to the other: what the tests import is a stand-in whose calls and
        attributes are asked for. Plain values come as copies; other objects stay where they are, can be used, and are equal
        to nothing and no True. Skipped tests are left out. Tests that had not ended when the submission ended have the outcome
        that ended it.

        Raises `EnvironmentFault` when the sandbox failed, or the tests cannot be run, `UserError` for tests that need pytest where
        it is not installed.
        """

    @abstractmethod
    async def run_program(self, source: str, stdin: str = "", limits: SandboxLimits | None = None) -> ExecResult:
        """Run `source` as a program that reads `stdin`. Raises `EnvironmentFault` when the sandbox failed."""

    @abstractmethod
    async def open_session(self, limits: SandboxLimits | None = None, *, snapshot: Snapshot | None = None) -> Session:
        """A box that lives until it is closed, with the files of a snapshot in it where one is given.

        The programs of this machine can be run in it. An open session that runs nothing takes no turn from others.
        Raises `EnvironmentFault` when the sandbox failed, `SessionError` where the snapshot has no room.
        """

    async def exec(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ) -> ExecResult:
        """Run one program in a box of its own, with `files` by their paths in its home. See `Session.exec`."""
        async with await self.open_session(limits) as session:
            for path, data in (files or {}).items():
                await session.write(path, data)
            return await session.exec(argv, stdin=stdin, env=env)

    @abstractmethod
    async def self_test(self) -> list[Probe]:
        """Try out each property of the sandbox by programs that would break it."""
