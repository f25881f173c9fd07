"""The rollout pool: groups of rollouts, concurrency, retries, and the ledger."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envhub.agents.engines.base import SamplingParams
from envhub.agents.executors.base import Executor
from envhub.driver import Driver
from envhub.errors import RewardFault, UserError
from envhub.ledger import Ledger
from envhub.limits import Limits
from envhub.outcome import Outcome
from envhub.rewards import RewardContext, Rubric
from envhub.rollout import Rollout
from envhub.specs import EnvironmentSpec
from envhub.tasks import Task


@dataclass(slots=True)
class Group:
    """The rollouts of one task that are compared with each other: those that count, and those that were dropped."""

    id: str
    task: Task
    rollouts: list[Rollout] = field(default_factory=list)
    dropped: list[Rollout] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A rollout that runs now: what it waits for, and for how many seconds."""

    rollout: str
    environment: str
    task: str
    stage: str
    seconds: float


class RolloutPool:
    """Runs groups of rollouts of one environment.

    Invariants: every rollout asked for is issued once in the ledger and comes out once, in `Group.rollouts` (buffered in
    the ledger: the consumer uses or drops it) or in `Group.dropped` (counted by reason). A fault is retried up to
    `retries` times in a fresh environment with the same task and seed. A group with fewer than `minimum_group` scored
    rollouts is dropped whole. At most `concurrency` rollouts run at once.
    """

    def __init__(
        self,
        executor: Executor,
        spec: EnvironmentSpec,
        *,
        config: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        sampling: SamplingParams | None = None,
        concurrency: int = 64,
        retries: int = 2,
        minimum_group: int | None = None,
        seed: int = 0,
        ledger: Ledger | None = None,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
            if value < least:
                raise UserError(f"{name} is at least {least}, not {value}")
        self.executor = executor
        self.spec = spec
        self.config = config
        self.limits = limits
        self.sampling = sampling
        self.concurrency = concurrency
        self.retries = retries
        self.minimum_group = minimum_group
        self.seed = seed
        self.ledger = ledger if ledger is not None else Ledger()
        self.on_rollout = on_rollout
        probe = Driver(spec, config)
        self.tasks = probe.tasks
        self._rubric: Rubric | None = probe.rubric
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[Group]] = set()
        self._numbers = itertools.count()

    def in_flight(self) -> list[InFlight]:
        """What every running rollout waits for, the longest wait first."""
        now = time.monotonic()
        rows = [
            InFlight(e.rollout.id, self.spec.id, e.rollout.task.id, e.stage, now - e.since)
            for e in self.executor.in_flight.values()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    async def run_group(
        self, task: Task, size: int, group_id: str | None = None, members: Sequence[int] | None = None
    ) -> Group:
        """Run `size` rollouts of one task, numbered from 0 or as `members` says.

        What each of them samples is a matter of the pool's seed, the group's id, its number, attempt and turn. When the
        call is cancelled, or one of them raises (a user's mistake), all of them end and are dropped in the ledger.
        """
        numbers = list(range(size)) if members is None else list(members)
        size = len(numbers)
        if size < 1:
            raise UserError("a group has at least one rollout, not 0")
        name = group_id if group_id is not None else f"{task.id}#{next(self._numbers)}"
        group = Group(name, task)
        self.ledger.issue(size)
        ended = [False] * size
        try:
            async with asyncio.TaskGroup() as scope:
                for place, member in enumerate(numbers):
                    title = f"rollout of environment {self.spec.id!r}, task {task.id}"
                    scope.create_task(self._member(group, member, ended, place), name=title)
            group.rollouts.sort(key=lambda rollout: rollout.member)
            await self._score_group(group)
        except BaseException as problem:
            unended = ended.count(False)
            self.ledger.drop("cancelled", unended)
            self.ledger.drop("cancelled", len(group.rollouts), buffered=True)
            if isinstance(problem, BaseExceptionGroup):
                raise _first(problem) from None
            raise
        self._check_size(group, size)
        return group

    async def run(
        self,
        tasks: Iterable[Task],
        size: int,
        *,
        name: Callable[[Task], str] | None = None,
        members: Callable[[Task], Sequence[int]] | None = None,
    ) -> AsyncGenerator[Group, None]:
        """Run a group for each task, yielding groups as they complete; takes tasks only as there is room for them.

        `name` gives the id of a task's group, `members` the numbers of its rollouts (default: `size` of them from 0).
        """
        waiting = iter(tasks)
        running: set[asyncio.Task[Group]] = set()
        ready: list[Group] = []
        ahead = max(1, -(-self.concurrency // size)) + 1
        try:
            while True:
                for task in itertools.islice(waiting, ahead - len(running)):
                    group_id = None if name is None else name(task)
                    numbers = None if members is None else members(task)
                    running.add(self._track(asyncio.create_task(self.run_group(task, size, group_id, numbers))))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                self._running -= done  # from here on they are the consumer's: `close` must not drop them
                failed = [item for item in done if item.cancelled() or item.exception() is not None]
                ready.extend(item.result() for item in done.difference(failed))
                for item in failed:
                    item.result()
                while ready:
                    yield ready.pop(0)
        finally:
            ready.extend(await _cancel(running))
            for group in ready:
                self._drop_all(group, "cancelled")

    async def close(self) -> None:
        """Cancel what still runs; its rollouts are dropped in the ledger."""
        for group in await _cancel(self._running):
            self._drop_all(group, "cancelled")

    def _track(self, task: "asyncio.Task[Group]") -> "asyncio.Task[Group]":
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _member(self, group: Group, member: int, ended: list[bool], place: int) -> None:
        attempts: list[dict[str, Any]] = []
        async with self._slots:
            for attempt in range(self.retries + 1):
                rollout = await self.executor.run(
                    self.spec, group.task, config=self.config, limits=self.limits, sampling=self.sampling,
                    group=group.id, member=member, attempt=attempt, seed=self.seed,
                )  # fmt: skip
                if not rollout.outcome.is_fault:
                    break
                attempts.append({"outcome": rollout.outcome.value, "fault": rollout.fault, "error": rollout.error})
                if attempt < self.retries:
                    self.ledger.retry(rollout.fault or rollout.outcome.value)
        if attempts:
            rollout.info["failed_attempts"] = attempts
        ended[place] = True
        if rollout.outcome.is_scored:
            self.ledger.finish()
            group.rollouts.append(rollout)
            if not self._has_group_rewards:
                self._emit(rollout)
        else:
            self.ledger.drop(rollout.fault or rollout.outcome.value)
            group.dropped.append(rollout)
            self._emit(rollout)

    @property
    def _has_group_rewards(self) -> bool:
        return self._rubric is not None and bool(self._rubric.group_rewards)

    def _emit(self, rollout: Rollout) -> None:
        if self.on_rollout is not None:
            self.on_rollout(rollout)

    async def _score_group(self, group: Group) -> None:
        """Add what group rewards give. A failing one drops the group's rollouts as a fault of that reward."""
        if self._rubric is None or not self._has_group_rewards or not group.rollouts:
            return
        complete = list(group.rollouts)
        contexts = [
            RewardContext(item.task, item.turns[-1].action, item.messages) for item in group.rollouts if item.turns
        ]
        scored = [item for item in group.rollouts if item.turns]
        try:
            verdicts = await self._rubric.score_group(contexts) if contexts else []
        except RewardFault as problem:
            reason = f"reward:{problem.reward}"
            for rollout in group.rollouts:
                rollout.outcome, rollout.fault, rollout.error = Outcome.ENVIRONMENT_FAULT, reason, str(problem)
            self._drop_all(group, reason)
            verdicts, scored = [], []
        for rollout, verdict in zip(scored, verdicts, strict=True):
            rollout.reward += verdict.total
            rollout.components |= verdict.components
        for rollout in complete:
            self._emit(rollout)

    def _check_size(self, group: Group, size: int) -> None:
        least = self.minimum_group if self.minimum_group is not None else min(2, size)
        if len(group.rollouts) < least and group.rollouts:
            self._drop_all(group, "small_group")

    def _drop_all(self, group: Group, reason: str) -> None:
        self.ledger.drop(reason, len(group.rollouts), buffered=True)
        group.dropped.extend(group.rollouts)
        group.rollouts = []


def _first(problem: BaseException) -> BaseException:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


async def _cancel(tasks: "Iterable[asyncio.Task[Group]]") -> list[Group]:
    """Cancel tasks and wait for their ends; the groups of those that had completed already."""
    pending = list(tasks)
    for task in pending:
        task.cancel()
    results = await asyncio.gather(*pending, return_exceptions=True)
    return [result for result in results if isinstance(result, Group)]
