"""Grade a submission: expected values stay here, and every comparison is made here."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envhub.sandbox.base import ExecResult, RunOutcome, Sandbox, SandboxLimits
from envhub.sandbox.languages import PYTHON, build, run_built

_SHOWN = 500


@dataclass(frozen=True)
class Failure:
    """The first test that failed. `expected` and `got` are shortened text; `outcome` is `ok` for a wrong answer.

    Of a test program (`grade_by_tests`) only `error` is known: the assertion that failed, or another error.
    """

    index: int
    arguments: str
    expected: str
    got: str
    error: str
    outcome: RunOutcome


@dataclass(frozen=True)
class Report:
    """The tests a submission passed. `outcomes` counts `"passed"`, `"wrong"` and the names of other outcomes."""

    passed: int
    total: int
    outcomes: dict[str, int] = field(default_factory=dict)
    first_failure: Failure | None = None

    @property
    def all_passed(self) -> bool:
        """Whether there were tests and every one passed."""
        return self.total > 0 and self.passed == self.total


def same_value(expected: Any, actual: Any, tolerance: float | None = None) -> bool:
    """Whether two plain values are the same, types included, at every level: `True` is not 1, and 1 is not 1.0.

    Args:
        expected: The right value.
        actual: The value under test; dict order does not matter.
        tolerance: Largest difference of two floats, absolute or relative to the expected one; exact when None.
            NaN and the infinities equal nothing.
    """
    kind = type(expected)
    if kind is not type(actual):
        return False
    if kind is float:
        if not (math.isfinite(expected) and math.isfinite(actual)):
            return False
        margin = 0.0 if tolerance is None else tolerance * max(1.0, abs(expected))
        return bool(expected == actual) or bool(abs(expected - actual) <= margin)
    if kind in (list, tuple):
        pairs = zip(expected, actual, strict=False)
        return len(expected) == len(actual) and all(same_value(a, b, tolerance) for a, b in pairs)
    if kind is dict:
        typed = {_key(key): value for key, value in actual.items()}
        if len(expected) != len(actual) or len(typed) != len(actual):
            return False
        return all(
            _key(key) in typed and same_value(value, typed[_key(key)], tolerance) for key, value in expected.items()
        )
    if expected is None or kind in (bool, int, str):
        return bool(expected == actual)
    return False


def _key(key: Any) -> Any:
    """A dict key together with its types, so that 1, 1.0 and True differ."""
    return (type(key), tuple(_key(item) for item in key) if type(key) is tuple else key)


def same_output(expected: str, actual: str) -> bool:
    """Whether two outputs have the same lines; line ends, trailing blanks and trailing blank lines do not count."""
    return _lines(expected) == _lines(actual)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


async def grade_function(
    sandbox: Sandbox,
    source: str,
    entry: str,
    tests: Sequence[tuple[Sequence[Any], Any]],
    limits: SandboxLimits | None = None,
    tolerance: float | None = None,
    same: Callable[[Any, Any], bool] | None = None,
) -> Report:
    """Call `entry` with each test's arguments and compare with its expected value.

    Args:
        sandbox: Where the submission runs, in one process for all tests.
        source: The submission.
        entry: Name of the function, or of a method of a class `Solution`.
        tests: Pairs of arguments and expected value.
        limits: Limits of the submission with all its tests; the defaults when None.
        tolerance: See `same_value`; only for tasks that declare one.
        same: Compares (expected, actual) instead of `same_value`.

    Raises:
        EnvironmentFault: The sandbox failed; says nothing about the submission.
    """
    results = await sandbox.calls(source, entry, [arguments for arguments, _ in tests], limits)
    tally = _Tally()
    for (arguments, expected), result in zip(tests, results, strict=True):
        right = result.outcome is RunOutcome.ok and (
            same_value(expected, result.value, tolerance) if same is None else same(expected, result.value)
        )
        got = result.value if result.outcome is RunOutcome.ok else ""
        tally.add(right, result.outcome, result.error, arguments, expected, got)
    return tally.report()


async def grade_by_tests(
    sandbox: Sandbox, source: str, entry: str, tests: str, limits: SandboxLimits | None = None
) -> Report:
    """Run a test program that calls functions of the submission; it counts as one test. See `Sandbox.check`.

    The failure's `error` is the assertion that did not hold, or what the submission did wrong.
    Raises `EnvironmentFault` when the sandbox failed, or the tests cannot be run.
    """
    result = await sandbox.check(source, entry, tests, limits)
    if result.outcome is RunOutcome.ok and result.value is True:
        return Report(1, 1, {"passed": 1})
    name = "wrong" if result.outcome is RunOutcome.ok else result.outcome.value
    return Report(0, 1, {name: 1}, Failure(0, "", "", "", result.error[:_SHOWN], result.outcome))


async def grade_program(
    sandbox: Sandbox,
    source: str,
    tests: Sequence[tuple[str, str]],
    limits: SandboxLimits | None = None,
    *,
    language: str = PYTHON,
    same: Callable[[str, str], bool] = same_output,
) -> Report:
    """Run the program once for each test's input, in a box of its own; exit code and output must both be right.

    After a test that hits a limit, or where the source does not compile, the remaining tests are not run and count with
    that outcome.

    Args:
        sandbox: Where the submission runs.
        source: The submission, in `language` (see `LANGUAGES`).
        tests: Pairs of what it reads from stdin and what it is to print.
        limits: Limits of each run; the defaults when None.
        language: What it is written in.
        same: Compares (expected, actual) output.

    Raises:
        UserError: A language that is not known, or that this machine lacks the tools of.
        EnvironmentFault: The sandbox failed; says nothing about the submission.
    """
    limits = limits or SandboxLimits()
    tally = _Tally()
    hopeless: RunOutcome | None = None
    program = None if language == PYTHON else await build(sandbox, language, source, limits)
    for stdin, expected in tests:
        if hopeless is not None:
            tally.add(
                False, hopeless, f"not run after an earlier test ended with {hopeless.value}", stdin, expected, ""
            )
            continue
        if program is None:
            run = await sandbox.run_program(source, stdin, limits)
        else:
            run = await run_built(sandbox, program, stdin, limits)
        right = run.outcome is RunOutcome.ok and run.exit_code == 0 and same(expected, run.stdout)
        error = _complaint(run)
        tally.add(right, run.outcome, error, stdin, expected, run.stdout)
        if run.outcome not in (RunOutcome.ok, RunOutcome.error, RunOutcome.exited):
            hopeless = run.outcome
    return tally.report()


def _complaint(run: ExecResult) -> str:
    """The line of stderr that says most of why a run failed; a compiler's first error."""
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    if run.outcome is RunOutcome.ok or not lines:
        return ""
    first = next((line for line in lines if "error" in line), lines[-1])
    return first if run.outcome is RunOutcome.syntax_error else lines[-1]


class _Tally:
    def __init__(self) -> None:
        self._outcomes: dict[str, int] = {}
        self._total = 0
        self._first: Failure | None = None

    def add(self, right: bool, outcome: RunOutcome, error: str, arguments: Any, expected: Any, got: Any) -> None:
        name = "passed" if right else "wrong" if outcome is RunOutcome.ok else outcome.value
        self._outcomes[name] = self._outcomes.get(name, 0) + 1
        if not right and self._first is None:
            self._first = Failure(
                self._total, _shown(arguments), _shown(expected), _shown(got), error[:_SHOWN], outcome
            )
        self._total += 1

    def report(self) -> Report:
        return Report(self._outcomes.get("passed", 0), self._total, self._outcomes, self._first)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
