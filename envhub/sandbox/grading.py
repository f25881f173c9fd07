"""Grade a submission: expected values stay here, and every comparison is made here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envhub.sandbox.base import ExecResult, RunOutcome, Sandbox, SandboxLimits
from envhub.sandbox.comparing import Case, Comparison
from envhub.sandbox.languages import PYTHON, build, run_built
from envhub.sandbox.process import is_plain

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


async def grade_function(
    sandbox: Sandbox,
    source: str,
    entry: str,
    tests: Sequence[tuple[Sequence[Any], Any]],
    limits: SandboxLimits | None = None,
    *,
    comparison: Comparison | None = None,
    same: Callable[[Any, Any], bool] | None = None,
) -> Report:
    """Call `entry` with each test's arguments and compare with its expected value.

    Args:
        sandbox: Where the submission runs, in one process for all tests.
        source: The submission.
        entry: Name of the function, or of a method of a class `Solution`.
        tests: Pairs of arguments and expected value.
        limits: Limits of the submission with all its tests; the defaults when None.
        comparison: What the task declares a right value to be; the same value of the same types when None.
        same: Compares (expected, actual) instead.

    Raises:
        EnvironmentFault: The sandbox or a checker failed; says nothing about the submission.
    """
    results = await sandbox.calls(source, entry, [arguments for arguments, _ in tests], limits)
    cases = {
        number: Case(list(arguments), expected, result.value)
        for number, ((arguments, expected), result) in enumerate(zip(tests, results, strict=True))
        if result.outcome is RunOutcome.ok
    }
    if same is not None:
        right = {number: same(case.expected, case.actual) for number, case in cases.items()}
    else:
        right = await _right(sandbox, comparison, cases)
    tally = _Tally()
    for number, ((arguments, expected), result) in enumerate(zip(tests, results, strict=True)):
        got = result.value if result.outcome is RunOutcome.ok else ""
        tally.add(right.get(number, False), result.outcome, result.error, arguments, expected, got)
    return tally.report()


async def _right(
    sandbox: Sandbox, comparison: Comparison | None, cases: dict[int, Case], *, texts: bool = False
) -> dict[int, bool]:
    """The verdict of each case by its number. Values that no checker can be given are wrong."""
    comparison = comparison or Comparison()
    fit = {number: case for number, case in cases.items() if texts or is_plain(case.actual)}
    verdicts = await comparison.verdicts(sandbox, list(fit.values()), texts=texts)
    return dict(zip(fit, verdicts, strict=True))


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


async def grade_by_unit_tests(
    sandbox: Sandbox, source: str, tests: str, limits: SandboxLimits | None = None, *, module: str = "solution"
) -> Report:
    """Run a file of unit tests that imports the submission as `module`; each of its tests counts. See `Sandbox.unit_tests`.

    Raises `EnvironmentFault` when the sandbox failed, or the tests cannot be run.
    """
    tally = _Tally()
    for result in await sandbox.unit_tests(source, tests, limits, module=module):
        tally.add(result.passed, result.outcome, f"{result.name}: {result.message}", "", "", "")
    return tally.report()


async def grade_program(
    sandbox: Sandbox,
    source: str,
    tests: Sequence[tuple[str, Any]],
    limits: SandboxLimits | None = None,
    *,
    language: str = PYTHON,
    comparison: Comparison | None = None,
) -> Report:
    """Run the program once for each test's input, in a box of its own; exit code and output must both be right.

    After a test that hits a limit, or where the source does not compile, the remaining tests are not run and count with
    that outcome.

    Args:
        sandbox: Where the submission runs.
        source: The submission, in `language` (see `LANGUAGES`).
        tests: Pairs of what it reads from stdin and what it is to print (of the comparison `any`, a list of such texts).
        limits: Limits of each run; the defaults when None.
        language: What it is written in.
        comparison: What the task declares a right output to be; the same lines when None.

    Raises:
        UserError: A language that is not known, or that this machine lacks the tools of.
        EnvironmentFault: The sandbox or a checker failed; says nothing about the submission.
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
        ended_well = run.outcome is RunOutcome.ok and run.exit_code == 0
        right = (
            ended_well and (await _right(sandbox, comparison, {0: Case(stdin, expected, run.stdout)}, texts=True))[0]
        )
        error = _complaint(run, language)
        tally.add(right, run.outcome, error, stdin, expected, run.stdout)
        if run.outcome not in (RunOutcome.ok, RunOutcome.error, RunOutcome.exited):
            hopeless = run.outcome
    return tally.report()


def _complaint(run: ExecResult, language: str) -> str:
    """The line of stderr that says most of why a run failed: Python's last, elsewhere the first that speaks of an error."""
    said = [line for line in run.stderr.splitlines() if line.strip()]
    if run.outcome is RunOutcome.ok or not said:
        return ""
    return said[-1] if language == PYTHON else next((line for line in said if "rror" in line), said[-1])


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
