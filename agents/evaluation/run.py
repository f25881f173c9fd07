"""Run an evaluation: several samples of each task, only those that are missing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from envhub.agents.engines.base import SamplingParams
from envhub.agents.executors import Executor, RolloutPool
from envhub.errors import UserError
from envhub.ledger import Ledger
from envhub.limits import Limits
from envhub.rollout import Rollout
from envhub.specs import EnvironmentSpec
from envhub.tasks import EVAL, Task, TaskSet


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What to evaluate: `tasks` tasks of a split (0: all of a finite split), `samples` of each, at a data seed."""

    spec: EnvironmentSpec
    config: Mapping[str, Any] = field(default_factory=dict)
    split: str = EVAL
    tasks: int = 0
    samples: int = 1
    seed: int = 0
    sampling: SamplingParams | None = None
    limits: Limits | None = None
    concurrency: int = 32
    retries: int = 2


def choose_tasks(tasks: TaskSet, split: str, count: int, seed: int) -> list[Task]:
    """The first `count` tasks of a split: all of them for 0, and where it has fewer.

    Raises UserError for an unknown split, and where an endless split needs a count.
    """
    if count < 0:
        raise UserError(f"the number of tasks is at least 1 (or 0 for all), not {count}")
    if split not in tasks.splits:
        tasks.get(split, 0, seed)  # which refuses it
    size = tasks.size(split)
    if size is None:
        if count == 0:
            raise UserError(f"task set {tasks.name!r} never ends; say how many tasks: --tasks 100")
        size = count
    return [tasks.get(split, index, seed) for index in range(min(count or size, size))]


def still_valid(plan: EvalPlan, tasks: Sequence[Task], done: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts of `done` that a plan need not run again: scored, of its tasks, by the same source of the environment."""
    seeds = {task.id: task.seed for task in tasks}
    kept = {
        (rollout.task.id, rollout.member): rollout
        for rollout in done
        if rollout.outcome.is_scored
        and rollout.environment == plan.spec.id
        and rollout.content_hash == plan.spec.content_hash
        and seeds.get(rollout.task.id) == rollout.task.seed
        and rollout.member < plan.samples
    }
    return list(kept.values())


async def evaluate(
    executor: Executor,
    plan: EvalPlan,
    *,
    done: Sequence[Rollout] = (),
    on_rollout: Callable[[Rollout], None] | None = None,
    ledger: Ledger | None = None,
) -> list[Rollout]:
    """Run what is missing of a plan and return its rollouts, those of `done` that belong to it among them.

    `on_rollout` sees every new rollout when its group is complete. Scored rollouts of `done` are kept; faults are run
    again. Rollouts of another environment, task or data seed do not belong to the plan. Raises UserError.
    """
    if plan.samples < 1:
        raise UserError(f"each task is sampled at least once, not {plan.samples} times")
    pool = RolloutPool(
        executor, plan.spec, config=plan.config, limits=plan.limits, sampling=plan.sampling,
        concurrency=plan.concurrency, retries=plan.retries, minimum_group=1, ledger=ledger, seed=plan.seed,
    )  # fmt: skip
    chosen = choose_tasks(pool.tasks, plan.split, plan.tasks, plan.seed)
    if len({task.id for task in chosen}) < len(chosen):
        twice = next(task.id for i, task in enumerate(chosen) if task.id in {other.id for other in chosen[:i]})
        raise UserError(f"task set {pool.tasks.name!r} has two tasks of the id {twice!r}; ids tell tasks apart")
    kept = {(rollout.task.id, rollout.member): rollout for rollout in still_valid(plan, chosen, done)}
    missing = {task.id: [m for m in range(plan.samples) if (task.id, m) not in kept] for task in chosen}
    rollouts = list(kept.values())
    tasks = [task for task in chosen if missing[task.id]]
    running = pool.run(tasks, plan.samples, name=lambda task: task.id, members=lambda task: missing[task.id])
    async with aclosing(running) as groups:
        async for group in groups:
            pool.ledger.use(len(group.rollouts))
            for rollout in (*group.rollouts, *group.dropped):
                rollouts.append(rollout)
                if on_rollout is not None:
                    on_rollout(rollout)
    return rollouts
