"""Write a Python function; hidden tests judge it, and the first one that fails comes back."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from envhub.environment import EnvironmentConfig, Reset, Step
from envhub.environments.sandbox_code.answers import defines, program, submission
from envhub.environments.sandbox_code.bank import LEVELS
from envhub.environments.sandbox_code.tasks import bank_tasks, from_jsonl, tests_of
from envhub.errors import UserError
from envhub.limits import Limits
from envhub.messages import Action, ActionLike, Message, Observation
from envhub.sandbox import (
    Failure,
    Report,
    RunOutcome,
    SandboxLimits,
    default_sandbox,
    grade_by_tests,
    grade_by_unit_tests,
    grade_function,
    grade_program,
    joined,
)
from envhub.single_turn import TaskEnvironment
from envhub.tasks import Task, TaskSet

_FUNCTION = "Write this Python function"
_NAMES = {"python": "Python", "javascript": "JavaScript (Node.js)", "bash": "Bash", "c": "C", "cpp": "C++"}
_OF_RUNTIMES = {"processes": 32, "file_mb": 8}  # which have threads of their own, and compilers programs of some size
_UNDEFINED = "NameError: the source defines no function"  # what a sandbox says of a name that cannot be called


class SandboxCodeConfig(EnvironmentConfig):
    """Which tasks, and how they are judged.

    `levels` (1 easy to 6) choose from the bundled bank; `data` is a JSON-lines file in the HumanEval or MBPP layout
    instead. The share `eval_fraction` of the tasks is the split eval (1: all of them), the rest is train. `tries`
    submissions may be made. The reward is 1 when all hidden tests pass; before that, the share of them that passes times
    `partial`, and `well_formed` for code that defines the function, whichever is more. Each later try that passes all is
    worth `later_tries` less.
    """

    levels: tuple[int, ...] = (1,)
    data: Path | None = None
    eval_fraction: float = Field(0.4, gt=0, le=1)
    tries: int = Field(2, ge=1, le=16)
    partial: float = Field(0.5, ge=0, le=1)
    well_formed: float = Field(0.1, ge=0, le=1)
    later_tries: float = Field(0.2, ge=0, le=1)
    seconds: float = Field(5.0, gt=0)
    memory_mb: int = Field(512, ge=64)


class SandboxCodeEnvironment(TaskEnvironment):
    """Write a function for a task; the failing test comes back and another try may be made.

    The reward of an episode is that of its best submission: each step pays what it adds. Expected values never enter
    the process of a submission. Components: `passed` (all tests), `tests` (share of tests), `well_formed`.
    """

    name = "sandbox_code"
    Config = SandboxCodeConfig
    limits = Limits(max_turns=16, max_turn_tokens=512, max_episode_tokens=4096)

    config: SandboxCodeConfig

    @functools.cached_property
    def tasks(self) -> TaskSet:
        config = self.config
        if config.data is not None:
            return from_jsonl(config.data, config.eval_fraction)
        wrong = [level for level in config.levels if level not in LEVELS]
        if wrong or not config.levels:
            raise UserError(f"sandbox_code has levels {LEVELS[0]} to {LEVELS[-1]}, not {wrong[0] if wrong else 'none'}")
        return bank_tasks(config.levels, config.eval_fraction)

    def begin(self, options: Mapping[str, Any] | None) -> Task:
        """As in every environment of tasks. Raises `UserError` for a task that is of another environment."""
        task = super().begin(options)
        self.hidden = tests_of(task)
        return task

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Reset:
        self.begin(options)
        self.best, self.used = 0.0, 0
        return Observation(self.messages), {"task": self.task.id, "level": self.task.info.get("level")}

    def opening(self, task: Task) -> tuple[Message, ...]:
        *earlier, last = super().opening(task)
        language = task.info.get("language", "")
        what = f"Write this {_NAMES[language]} program, which reads stdin and writes stdout" if language else _FUNCTION
        if "unit_tests" in task.info:
            what = f"Write this Python module, {task.info['module']}.py"
        return (*earlier, Message("user", f"{what}. Answer with the code only.\n\n{last.text}"))

    async def step(self, action: ActionLike) -> Step:
        action = Action.of(action)
        self.used += 1
        entry, language = self.hidden.entry, self.hidden.language
        source = program(action.text, language) if language else submission(action.text, entry)
        is_one = bool(source.strip()) if language else defines(source, entry)
        report = await self._grade(source) if is_one else None
        defined = report is not None and not _lacks_function(report, entry)
        if report is None or not defined:
            lacks = "has no code" if language else f"defines no function {entry}"
            said = f"Your answer {lacks}. {self._again}"
            report = Report(0, max(1, len(self.hidden.cases)), {"no_function": 1})
        else:
            said = f"{_feedback(report, entry)} {self._again}"
        value = self._value(defined, report)
        gain, self.best = max(0.0, value - self.best), max(self.best, value)
        done = report.all_passed or self.used >= self.config.tries
        info: dict[str, Any] = {
            "tests": dict(report.outcomes), "solved": report.all_passed, "sandbox": default_sandbox().tier,
        }  # fmt: skip
        if done:
            share = report.passed / report.total
            info["components"] = {"passed": float(report.all_passed), "tests": share, "well_formed": float(defined)}
        observation = said if not done else ""
        return observation or Observation(), gain, done, False, info

    @property
    def _again(self) -> str:
        what = "module" if self.hidden.unit_tests else "program" if self.hidden.language else "function"
        return f"Write the whole {what} again, corrected. Answer with the code only."

    def _value(self, defined: bool, report: Report) -> float:
        config = self.config
        if report.all_passed:
            return max(0.0, 1.0 - config.later_tries * (self.used - 1))
        if not defined or set(report.outcomes) <= {"syntax_error"}:
            return 0.0
        return max(config.well_formed, config.partial * report.passed / report.total)

    async def _grade(self, source: str) -> Report:
        limits = SandboxLimits(
            wall_seconds=self.config.seconds, cpu_seconds=max(1, round(self.config.seconds)), memory_mb=self.config.memory_mb,
            total_mb=max(512, self.config.memory_mb), processes=4, output_kb=64, file_mb=1,
        )  # fmt: skip
        hidden = self.hidden
        sandbox = default_sandbox()
        await sandbox.start()
        if hidden.unit_tests:
            return await grade_by_unit_tests(sandbox, source, hidden.unit_tests, limits, module=hidden.module)
        if hidden.language:
            if hidden.language != "python":
                limits = limits.model_copy(update=_OF_RUNTIMES)
            return await grade_program(
                sandbox, source, hidden.cases, limits, language=hidden.language, comparison=hidden.comparison
            )
        preamble = self.task.info.get("preamble", "")
        source = joined(preamble, source)
        if self.hidden.cases:
            same = None if hidden.exact_types else _equal
            return await grade_function(
                sandbox, source, hidden.entry, hidden.cases, limits, same=same, comparison=hidden.comparison
            )
        tests = joined(preamble, self.hidden.program)
        return await grade_by_tests(sandbox, source, self.hidden.entry, tests, limits)

    def oracle(self) -> ActionLike | None:
        solution = self.task.info.get("solution")
        language = self.task.info.get("language") or "python"
        return f"```{language}\n{solution.strip()}\n```" if solution else None


def _lacks_function(report: Report, entry: str) -> bool:
    return report.first_failure is not None and report.first_failure.error == f"{_UNDEFINED} {entry!r}"


def _equal(expected: object, actual: object) -> bool:
    return bool(expected == actual)


def _feedback(report: Report, entry: str) -> str:
    failure = report.first_failure
    if failure is None:
        return "All tests pass."
    if not entry and failure.arguments == "''":  # of a unit test, which has none
        return f"A test failed: {failure.error}."
    if not entry:
        return _feedback_of_program(failure)
    if not failure.arguments and failure.outcome in (RunOutcome.ok, RunOutcome.error):
        return f"A test failed: {failure.error}."
    if failure.outcome is RunOutcome.ok:
        call = f"{entry}{_as_call(failure.arguments)}"
        return f"{call} returned {failure.got}, expected {failure.expected}."
    if failure.outcome is RunOutcome.error:
        return f"{entry}{_as_call(failure.arguments)} raised {failure.error}."
    return f"Your code failed: {failure.outcome.value.replace('_', ' ')}. {failure.error}".rstrip(". ") + "."


def _feedback_of_program(failure: Failure) -> str:
    if failure.outcome is RunOutcome.ok:
        return f"For the input {failure.arguments} it printed {failure.got}, expected {failure.expected}."
    ended = failure.outcome.value.replace("_", " ")
    return f"For the input {failure.arguments} it failed: {ended}. {failure.error}".rstrip(". ") + "."


def _as_call(arguments: str) -> str:
    """`(1, 2)` from the text of a tuple or list of arguments."""
    inner = arguments[1:-1] if arguments[:1] in "([" and arguments[-1:] in ")]" else arguments
    return f"({inner.rstrip(',')})"
