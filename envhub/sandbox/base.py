"""What every sandbox tier offers: run a submission under limits, and say how each run ended."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


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
class Probe:
    """One property of a sandbox, tried out: whether the tier promises it here, and whether it holds."""

    name: str
    promised: bool
    holds: bool
    detail: str = ""


class Sandbox(ABC):
    """Runs untrusted Python. Each submission gets new processes and a new directory, both gone afterwards.

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
    async def run_program(self, source: str, stdin: str = "", limits: SandboxLimits | None = None) -> ExecResult:
        """Run `source` as a program that reads `stdin`. Raises `EnvironmentFault` when the sandbox failed."""

    @abstractmethod
    async def self_test(self) -> list[Probe]:
        """Try out each property of the sandbox by programs that would break it."""
