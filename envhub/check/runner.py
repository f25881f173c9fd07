"""Runs the checks in their order: each with a deadline, and none whose ground another one has found to be missing."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from envhub.check import basics, behaviour
from envhub.check.gym import gymnasium
from envhub.check.report import CheckReport, CheckResult, OnResult, Status, Verdict
from envhub.check.subject import Subject, remedy_of
from envhub.check.task_sets import splits
from envhub.check.watch import BEAT, WatchedLoop
from envhub.environment import Environment
from envhub.errors import Fault, NotRegisteredError, UserError
from envhub.guard import described
from envhub.rewards import process_pool
from envhub.specs import EnvironmentSpec

Check: TypeAlias = Callable[[Subject], Awaitable[str]]

_BLOCKED_SLACK = 2.0
_END_SECONDS = 10.0
_CHECK_SECONDS = 60.0
_CALLS_A_CHECK = 10
_BLOCKING_REMEDY = "await instead of blocking (asyncio.sleep, asyncio.to_thread), or write the method as a plain def: it runs in a thread"


@dataclass(frozen=True, slots=True)
class _Planned:
    """A check with those that must not have failed before it."""

    name: str
    check: Check
    needs: tuple[str, ...] = ()


_BASICS = (
    _Planned("imports", basics.imports),
    _Planned("configuration", basics.configuration, ("imports",)),
    _Planned("reset", basics.reset, ("imports", "configuration")),
)
_PLAYS = ("imports", "configuration", "reset", "step")
_PLAN = (
    *_BASICS[:2],
    _Planned("documentation", basics.documentation, ("imports",)),
    _BASICS[2],
    _Planned("step", basics.step, ("imports", "configuration", "reset")),
    _Planned("determinism", behaviour.determinism, _PLAYS),
    _Planned("interleaving", behaviour.interleaving, (*_PLAYS, "determinism")),
    _Planned("global_rng", behaviour.global_rng, _PLAYS),
    _Planned("junk", behaviour.junk, _PLAYS),
    _Planned("limits", behaviour.limits, (*_PLAYS, "junk")),
    _Planned("oracle", behaviour.oracle, _PLAYS),
    _Planned("policies", behaviour.policies, (*_PLAYS, "junk", "limits", "oracle")),
    _Planned("gymnasium", gymnasium, (*_PLAYS, "determinism", "junk", "limits")),
    _Planned("splits", splits, ("imports", "configuration", "reset")),
    _Planned("records", basics.records, _PLAYS),
    _Planned("close", basics.close, _PLAYS),
)

CHECKS = tuple(planned.name for planned in _PLAN)
"""The names of all checks, in the order in which they run."""


async def check_environment(
    spec: EnvironmentSpec | str | type[Environment],
    *,
    config: Mapping[str, Any] | None = None,
    episodes: int = 4,
    step_seconds: float | None = None,
    on_result: OnResult | None = None,
) -> CheckReport:
    """Examine an environment: a spec, an id, a path or a class, with `config` over the spec's own.

    Means are over `episodes` episodes; `step_seconds` is the deadline of one call (by default the environment's own).
    `on_result` sees each result when it is there. What the environment does wrong is in the report and is never raised,
    a hang included. Raises NotRegisteredError for an id that no registry knows, UserError for `episodes` below 1 or a
    deadline that is not positive.
    """
    run = _Run(_subject(spec, config, episodes, step_seconds), _PLAN)
    run.start()
    try:
        for result in run.watch():
            if result is None:
                await asyncio.sleep(BEAT)
            elif on_result is not None:
                on_result(result)
    finally:
        for _ in run.end():
            await asyncio.sleep(BEAT)
    return run.report()


def quick_check(
    spec: EnvironmentSpec | str | type[Environment], config: Mapping[str, Any] | None = None
) -> CheckReport:
    """Import the environment, configure it, and reset it once: what registering asks for.

    Raises UserError with the first failure and its remedy, NotRegisteredError for an unknown id.
    """
    run = _Run(_subject(spec, config, 1, None), _BASICS)
    run.start()
    try:
        for result in run.watch():
            if result is None:
                time.sleep(BEAT)
    finally:
        for _ in run.end():
            time.sleep(BEAT)
    report = run.report()
    for failure in report.failures:
        remedy = f"; {failure.remedy}" if failure.remedy else ""
        raise UserError(f"{report.environment!r} fails the check {failure.name!r}: {failure.detail}{remedy}")
    return report


def _subject(
    spec: EnvironmentSpec | str | type[Environment],
    config: Mapping[str, Any] | None,
    episodes: int,
    step_seconds: float | None,
) -> Subject:
    if episodes < 1:
        raise UserError(f"a check plays at least one episode, not {episodes}")
    if step_seconds is not None and not step_seconds > 0:
        raise UserError(f"the deadline of a call is positive, not {step_seconds}")
    return Subject(spec, dict(config or {}), episodes, step_seconds)


class _Run:
    """One run of planned checks in a watched loop.

    Invariant: every planned check has exactly one result in the report, also when the loop is given up.
    """

    def __init__(self, subject: Subject, plan: Sequence[_Planned]) -> None:
        self._subject = subject
        self._plan = plan
        self._loop = WatchedLoop(self._work, f"check-{subject.label}")
        self._made: list[CheckResult] = []  # by the loop's thread
        self._told: list[CheckResult] = []  # by whoever watches
        self._given_up = False

    def start(self) -> None:
        """Start the checks."""
        self._loop.start()

    def report(self) -> CheckReport:
        """The report, after `watch` has come to its end."""
        return CheckReport(self._subject.label, tuple(self._told))

    def watch(self) -> Iterator[CheckResult | None]:
        """Each result once it is there, and None whenever there is reason to wait a little."""
        suspicious = False
        while True:
            finished = self._loop.finished
            while len(self._told) < len(self._made):
                yield self._tell(self._made[len(self._told)])
            if finished:
                break
            blocked = self._loop.silence > self._subject.step_seconds + _BLOCKED_SLACK
            if blocked and suspicious:  # twice: the whole process may have been asleep
                self._given_up = True
                break
            suspicious = blocked
            yield None
        if isinstance(self._loop.problem, NotRegisteredError):
            raise self._loop.problem
        if len(self._told) < len(self._plan):
            yield self._tell(self._unfinished(self._plan[len(self._told)].name))
        for planned in self._plan[len(self._told) :]:
            yield self._tell(CheckResult(planned.name, "skip", f"the checks ended with {self._told[-1].name!r}"))

    def end(self) -> Iterator[None]:
        """Stop what still runs; yields while it ends, for a bounded time and not at all for a blocked loop."""
        self._loop.stop()
        until = time.monotonic() + _END_SECONDS
        while not (self._loop.finished or self._given_up or time.monotonic() > until):
            yield

    def _tell(self, result: CheckResult) -> CheckResult:
        self._told.append(result)
        return result

    def _unfinished(self, name: str) -> CheckResult:
        problem = self._loop.problem
        if problem is not None:
            detail = f"the environment raised {type(problem).__name__}({problem}), which ends a whole process"
            return CheckResult(name, "fail", detail, "raise EnvironmentFault instead")
        seconds = self._loop.silence
        detail = f"async code blocks the event loop for more than {self._subject.step_seconds:g} s{self._loop.place}"
        return CheckResult(name, "fail", detail, _BLOCKING_REMEDY, seconds)

    async def _work(self) -> None:
        try:
            for planned in self._plan:
                result = await self._check(planned)
                if self._given_up:
                    return
                self._made.append(result)
        finally:
            await self._subject.release()
            await process_pool().close()

    async def _check(self, planned: _Planned) -> CheckResult:
        for result in self._made:
            if result.status == "fail" and result.name in planned.needs:
                return CheckResult(planned.name, "skip", f"the check {result.name!r} failed", "repair that one first")
        start = time.monotonic()
        status, detail, remedy = await self._outcome(planned)
        return CheckResult(planned.name, status, detail, remedy, time.monotonic() - start)

    async def _outcome(self, planned: _Planned) -> tuple[Status, str, str]:
        """The check's status, detail and remedy, whatever it raises."""
        # Importing has a deadline of its own, longer than a check's.
        seconds = (
            None if planned.name == "imports" else max(_CHECK_SECONDS, _CALLS_A_CHECK * self._subject.step_seconds)
        )
        try:
            async with asyncio.timeout(seconds) as scope:
                return "pass", await planned.check(self._subject), ""
        except Verdict as verdict:
            return verdict.status, verdict.detail, verdict.remedy
        except NotRegisteredError:
            raise
        except (Fault, UserError) as problem:
            return "fail", str(problem), remedy_of(problem)
        except Exception as problem:  # the environment's own code, which may raise anything
            if isinstance(problem, TimeoutError) and scope.expired():
                return "fail", f"did not end within {seconds:g} s", "make reset and step quicker, or episodes shorter"
            return "fail", f"raised {described(problem)}", "repair what the message names"
