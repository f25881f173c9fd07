import asyncio
from collections import Counter

import pytest

from envhub import ListTasks, Outcome, Rollout, Task, UserError
from envhub.agents.engines.scripted import ScriptedEngine
from envhub.agents.evaluation import EvalPlan, choose_tasks, evaluate, summarise
from envhub.agents.executors import SingleTurnExecutor
from envhub.agents.rendering import ByteRenderer
from envhub.ledger import Ledger
from envhub.tasks import GeneratedTasks

BODY = """
from envhub import ListTasks, Task
class Probe(Environment):
    tasks = ListTasks("probe", {"eval": [Task(str(i), id=f"t{i}") for i in range(4)], "train": [Task("x")]})
    def reset(self, *, seed=None, options=None):
        self.task = options["task"]
        return self.task.prompt, {}
    def step(self, action):
        if action.text == "break":
            raise EnvironmentFault("broken")
        return "", float(action.text == "right"), True, False, {}
"""
ALL = {(f"t{task}", member) for task in range(4) for member in range(2)}


@pytest.fixture
def probe(write_environment):
    return write_environment(BODY)


@pytest.fixture
def executor_of():
    """An executor whose model says what a function of the task's id says, and the tasks that it was asked about."""

    def make(policy) -> tuple[SingleTurnExecutor, list[str]]:
        asked: list[str] = []

        def say(messages, request) -> str:
            asked.append(request.task.id)
            return policy(request.task.id)

        return SingleTurnExecutor(ScriptedEngine(say), ByteRenderer()), asked

    return make


def right(task: str) -> str:
    return "right"


def samples(rollouts: list[Rollout]) -> set[tuple[str, int]]:
    return {(rollout.task.id, rollout.member) for rollout in rollouts}


async def test_every_task_is_sampled_as_often_as_planned(probe, executor_of) -> None:
    executor, asked = executor_of(right)
    ledger, seen = Ledger(), []
    found = await evaluate(executor, EvalPlan(probe, samples=2), ledger=ledger, on_rollout=seen.append)
    assert samples(found) == ALL
    assert len(found) == 8
    assert Counter(asked) == {f"t{task}": 2 for task in range(4)}
    assert sorted(item.id for item in seen) == sorted(item.id for item in found)
    assert (ledger.issued, ledger.used) == (8, 8)
    assert summarise(found).reward.mean == 1.0


async def test_only_what_is_missing_is_run(probe, executor_of) -> None:
    plan = EvalPlan(probe, samples=2)
    whole = await evaluate(executor_of(right)[0], plan)
    for missing in (set(), {("t1", 0)}, {("t1", 1), ("t2", 0), ("t2", 1)}, {("t0", 1), ("t3", 0)}, ALL):
        done = [item for item in whole if (item.task.id, item.member) not in missing]
        executor, asked = executor_of(right)
        seen: list[Rollout] = []
        found = await evaluate(executor, plan, done=done, on_rollout=seen.append)
        assert sorted(asked) == sorted(task for task, _ in missing)
        assert samples(seen) == missing
        assert samples(found) == ALL
        assert len(found) == 8
        assert {item.id for item in done} <= {item.id for item in found}


async def test_faults_are_run_again_and_scores_are_not(probe, executor_of) -> None:
    plan = EvalPlan(probe, retries=0)
    first = await evaluate(executor_of(lambda task: "break" if task in ("t1", "t2") else "wrong")[0], plan)
    assert {item.task.id for item in first if item.outcome.is_fault} == {"t1", "t2"}
    executor, asked = executor_of(right)
    again = await evaluate(executor, plan, done=first)
    assert sorted(asked) == ["t1", "t2"]
    assert {item.task.id: item.reward for item in again} == {"t0": 0.0, "t1": 1.0, "t2": 1.0, "t3": 0.0}


async def test_what_belongs_to_another_plan_is_run_anew(probe, executor_of) -> None:
    more = await evaluate(executor_of(right)[0], EvalPlan(probe, samples=3))
    found = await evaluate(executor_of(right)[0], EvalPlan(probe, tasks=2, samples=2), done=more)
    assert samples(found) == {("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)}
    assert {item.id for item in found} <= {item.id for item in more}

    executor, asked = executor_of(right)
    await evaluate(executor, EvalPlan(probe, seed=1), done=more)
    assert sorted(asked) == ["t0", "t1", "t2", "t3"]
    for item in more:
        item.environment = "another"
    executor, asked = executor_of(right)
    await evaluate(executor, EvalPlan(probe), done=more)
    assert sorted(asked) == ["t0", "t1", "t2", "t3"]


async def test_an_environment_that_always_fails_is_counted_and_never_scored(probe, executor_of) -> None:
    executor, asked = executor_of(lambda task: "break")
    ledger = Ledger()
    found = await evaluate(executor, EvalPlan(probe, samples=2, retries=2), ledger=ledger)
    assert samples(found) == ALL
    assert {item.outcome for item in found} == {Outcome.ENVIRONMENT_FAULT}
    assert len(asked) == 8 * 3
    assert (ledger.issued, ledger.used, dict(ledger.dropped)) == (8, 0, {"environment": 8})
    assert dict(ledger.retried) == {"environment": 16}
    summary = summarise(found)
    assert (summary.rollouts, summary.scored, summary.faults) == (8, 0, {"environment": 8})


async def test_a_task_that_fails_keeps_its_other_samples(probe, executor_of) -> None:
    turn = iter(range(100))
    executor, _ = executor_of(lambda task: "break" if next(turn) % 2 else "right")
    found = await evaluate(executor, EvalPlan(probe, samples=4, retries=0, concurrency=1))
    assert len(found) == 16
    assert summarise(found).scored == 8
    assert all(item.reward == 1.0 for item in found if item.outcome.is_scored)


async def test_no_more_run_at_once_than_are_allowed(probe) -> None:
    running, most = 0, 0
    both = asyncio.Barrier(2)  # nobody answers before two are asked

    async def say(messages, request) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await both.wait()
        running -= 1
        return "right"

    executor = SingleTurnExecutor(ScriptedEngine(say), ByteRenderer())
    await evaluate(executor, EvalPlan(probe, samples=3, concurrency=2))
    assert most == 2


async def test_what_on_rollout_raises_ends_the_evaluation(probe, executor_of) -> None:
    def full(rollout: Rollout) -> None:
        raise UserError("the disk is full")

    executor, _ = executor_of(right)
    ledger = Ledger()
    with pytest.raises(UserError, match="the disk is full"):
        await evaluate(executor, EvalPlan(probe, samples=2, concurrency=1), on_rollout=full, ledger=ledger)
    assert executor.in_flight == {}
    assert ledger.in_flight == 0
    ledger.check()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"samples": 0}, "sampled at least once, not 0 times"),
        ({"samples": -1}, "sampled at least once, not -1 times"),
        ({"tasks": -1}, r"at least 1 \(or 0 for all\), not -1"),
        ({"concurrency": 0}, "concurrency is at least 1, not 0"),
        ({"retries": -1}, "retries is at least 0, not -1"),
        ({"split": "evil"}, "no split 'evil'.*did you mean 'eval'"),
        ({"split": "evil", "tasks": 3}, "no split 'evil'"),
        ({"config": {"most": 3}}, "no configuration key 'most'"),
    ],
)
async def test_plans_that_cannot_be_run_say_why(probe, executor_of, values: dict, problem: str) -> None:
    executor, asked = executor_of(right)
    with pytest.raises(UserError, match=problem):
        await evaluate(executor, EvalPlan(probe, **values))
    assert asked == []


async def test_two_tasks_of_one_id_are_refused(write_environment, executor_of) -> None:
    twice = write_environment(BODY.replace('id=f"t{i}"', 'id=f"t{i % 3}"'))
    with pytest.raises(UserError, match="'probe' has two tasks of the id 't0'"):
        await evaluate(executor_of(right)[0], EvalPlan(twice))


def test_a_finite_split_is_taken_whole_or_from_its_start() -> None:
    tasks = ListTasks("few", {"eval": [Task(str(index)) for index in range(3)]})
    for count, chosen in ((0, 3), (2, 2), (3, 3), (9, 3)):
        assert [task.index for task in choose_tasks(tasks, "eval", count, 0)] == list(range(chosen))


def test_an_endless_split_needs_a_count() -> None:
    tasks = GeneratedTasks("many", lambda rng: Task(str(rng.random())))
    with pytest.raises(UserError, match="'many' never ends; say how many tasks"):
        choose_tasks(tasks, "eval", 0, 0)
    first, again, other = (choose_tasks(tasks, "eval", 4, seed) for seed in (0, 0, 1))
    assert first == again
    assert {task.prompt for task in first}.isdisjoint(task.prompt for task in other)
    assert len(first) == 4
