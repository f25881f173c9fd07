import asyncio
import gc
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envhub import Action, Outcome
from envhub.agents.engines.base import Engine, Generation, Request
from envhub.agents.executors import MultiTurnExecutor, RolloutPool, Watchdog
from envhub.errors import UserError


class _Chat(Engine):
    """Says `stop` after a pause."""

    speaks = "chat"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.running = 0
        self.most = 0

    async def generate(self, request: Request) -> Generation:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return Generation(action=Action("stop"), sampled_tokens=1)


FLAKY = """
COUNT = {}
class Flaky(Environment):
    '''Fails as often as its configuration says, by task.'''
    class Config(EnvironmentConfig):
        failures: int = 0
        raising: str = "environment"
    async def reset(self, *, seed=None, options=None):
        self.task = options["task"]
        return f"{self.rng.random()}", {}
    async def step(self, action):
        seen = COUNT[self.task.id] = COUNT.get(self.task.id, 0) + 1
        if seen <= self.config.failures:
            raise {"environment": EnvironmentFault, "model": ModelFault}[self.config.raising]("flaky")
        return "", 1.0, True, False, {}
"""


@pytest.fixture
def flaky(write_environment, request):
    number = abs(hash(request.node.nodeid))
    return write_environment(f"from envhub import EnvironmentConfig\n# {number}\n" + FLAKY, "Flaky")


def _pool(spec, seconds: float = 0.0, **options) -> RolloutPool:
    return RolloutPool(MultiTurnExecutor(_Chat(seconds)), spec, **options)


async def test_a_group_plays_one_task_from_the_same_beginning(flaky) -> None:
    pool = _pool(flaky)
    group = await pool.run_group(pool.tasks.get("train", 3), 4)
    assert [rollout.member for rollout in group.rollouts] == [0, 1, 2, 3]
    assert len({rollout.opening for rollout in group.rollouts}) == 1
    assert len({rollout.id for rollout in group.rollouts}) == 4
    assert {rollout.group for rollout in group.rollouts} == {group.id}
    assert pool.ledger.to_dict() == {
        "issued": 4, "used": 0, "in_flight": 0, "buffered": 4, "dropped": {}, "retried": {},
    }  # fmt: skip


async def test_a_fault_is_retried_in_a_fresh_environment_with_the_same_beginning(flaky) -> None:
    pool = _pool(flaky, config={"failures": 2}, retries=2, concurrency=1)
    group = await pool.run_group(pool.tasks.get("train", 0), 2)
    assert [rollout.attempt for rollout in group.rollouts] == [2, 0]
    assert len({rollout.opening for rollout in group.rollouts}) == 1
    assert [item["error"] for item in group.rollouts[0].info["failed_attempts"]] == ["flaky", "flaky"]
    assert pool.ledger.retried == {"environment": 2}


async def test_a_fault_that_stays_is_dropped_with_its_kind_and_never_scored(flaky) -> None:
    seen = []
    pool = _pool(flaky, config={"failures": 3}, retries=0, concurrency=1, on_rollout=seen.append)
    group = await pool.run_group(pool.tasks.get("train", 0), 5)
    assert [rollout.member for rollout in group.rollouts] == [3, 4]
    assert {rollout.outcome for rollout in group.dropped} == {Outcome.ENVIRONMENT_FAULT}
    assert (pool.ledger.dropped, pool.ledger.buffered, len(seen)) == ({"environment": 3}, 2, 5)


async def test_an_environment_that_cancels_itself_loses_no_rollout(write_environment) -> None:
    body = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        return "x", {}
    async def step(self, action):
        raise asyncio.CancelledError
"""
    pool = _pool(write_environment(body), retries=0)
    group = await pool.run_group(pool.tasks.get("train", 0), 3)
    assert [rollout.fault for rollout in group.dropped] == ["environment"] * 3
    assert (pool.ledger.dropped, pool.ledger.in_flight) == ({"environment": 3}, 0)


async def test_a_model_fault_is_scored_and_not_retried(flaky) -> None:
    pool = _pool(flaky, config={"failures": 1, "raising": "model"}, concurrency=1)
    group = await pool.run_group(pool.tasks.get("train", 0), 2)
    assert [(rollout.outcome, rollout.reward) for rollout in group.rollouts] == [
        (Outcome.MODEL_FAULT, 0.0),
        (Outcome.FINISHED, 1.0),
    ]
    assert not pool.ledger.retried


@pytest.mark.parametrize(("minimum", "kept"), [(None, 0), (1, 1)])
async def test_a_group_below_its_minimum_is_dropped_whole(flaky, minimum: int | None, kept: int) -> None:
    pool = _pool(flaky, config={"failures": 3}, retries=0, concurrency=1, minimum_group=minimum)
    group = await pool.run_group(pool.tasks.get("train", 0), 4)
    assert (len(group.rollouts), len(group.dropped)) == (kept, 4 - kept)
    assert pool.ledger.dropped["small_group"] == 1 - kept


async def test_concurrency_is_a_bound_and_is_reached(flaky) -> None:
    pool = _pool(flaky, seconds=0.01, concurrency=5)
    tasks = [pool.tasks.get("train", index) for index in range(8)]
    groups = [group async for group in pool.run(tasks, 3)]
    assert sorted(group.task.index for group in groups) == list(range(8))
    assert pool.executor.engine.most == 5


async def test_infinite_tasks_are_taken_only_as_there_is_room(flaky) -> None:
    pool = _pool(flaky, seconds=0.001, concurrency=4)
    taken = []

    def endless():
        for index in itertools.count():
            taken.append(index)
            yield pool.tasks.get("train", index)

    groups = pool.run(endless(), 2)
    for _ in range(5):
        await anext(groups)
    await groups.aclose()
    assert len(taken) <= 5 + 6
    ledger = pool.ledger
    assert ledger.in_flight == 0
    assert ledger.buffered == 10
    assert ledger.issued == 10 + ledger.dropped.total()
    assert set(ledger.dropped) <= {"cancelled"}


async def test_cancelling_a_group_ends_its_rollouts_and_balances_the_ledger(flaky) -> None:
    pool = _pool(flaky, seconds=60)
    running = asyncio.create_task(pool.run_group(pool.tasks.get("train", 0), 3))
    await asyncio.sleep(0.05)
    (first, *rest) = pool.in_flight()
    assert (first.stage, first.environment, len(rest)) == ("generate", "flaky", 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert pool.ledger.dropped == {"cancelled": 3}
    assert pool.in_flight() == []


async def test_closing_ends_what_runs(flaky) -> None:
    pool = _pool(flaky, seconds=60)
    groups = pool.run([pool.tasks.get("train", 0)], 2)
    waiting = asyncio.create_task(anext(groups))
    await asyncio.sleep(0.05)
    await pool.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.ledger.dropped == {"cancelled": 2}


MISTAKEN = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        from envhub import UserError
        raise UserError("the data file is missing; download it first")
    async def step(self, action): ...
"""


async def test_a_users_mistake_ends_the_run_with_its_own_message(write_environment) -> None:
    pool = _pool(write_environment(MISTAKEN))
    with pytest.raises(UserError, match="download it first"):
        await pool.run_group(pool.tasks.get("train", 0), 2)
    assert pool.ledger.dropped == {"cancelled": 2}


async def test_a_mistake_that_many_groups_meet_is_told_once(write_environment) -> None:
    pool, told = _pool(write_environment(MISTAKEN)), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    with pytest.raises(UserError, match="download it first"):
        async for _ in pool.run((pool.tasks.get("train", index) for index in range(8)), 2):
            pass
    gc.collect()
    await asyncio.sleep(0)
    assert told == []
    assert pool.ledger.issued == sum(pool.ledger.dropped.values())


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("concurrency", -2), ("retries", -1)])
def test_sizes_are_checked(flaky, name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{name} is at least"):
        _pool(flaky, **{name: value})


GROUPED = """
from envhub import SingleTurnEnvironment, GeneratedTasks, Task, reward

def longest(group):
    {body}

class Grouped(SingleTurnEnvironment):
    tasks = GeneratedTasks("g", lambda rng: Task(prompt="x", answer="y"))
    rewards = (reward(weight=2.0)(longest),)
"""


async def test_group_rewards_are_added_when_the_group_is_complete(write_environment) -> None:
    spec = write_environment(GROUPED.format(body="return [float(i) for i, _ in enumerate(group)]"), "Grouped")
    seen = []
    pool = _pool(spec, on_rollout=lambda rollout: seen.append(rollout.reward))
    group = await pool.run_group(pool.tasks.get("train", 0), 3)
    assert [rollout.reward for rollout in group.rollouts] == [0.0, 2.0, 4.0] == seen
    assert group.rollouts[1].components == {"longest": 1.0}


async def test_a_failing_group_reward_drops_its_group_as_its_fault(write_environment) -> None:
    spec = write_environment(GROUPED.format(body="raise ValueError('odd')"), "Grouped")
    pool = _pool(spec)
    group = await pool.run_group(pool.tasks.get("train", 0), 3)
    assert group.rollouts == []
    assert {rollout.fault for rollout in group.dropped} == {"reward:longest"}
    assert pool.ledger.dropped == {"reward:longest": 3}


async def test_cancelling_a_group_that_is_scored_balances_the_ledger(write_environment) -> None:
    spec = write_environment("import time\n" + GROUPED.format(body="time.sleep(0.3); return [0.0] * 3"), "Grouped")
    pool = _pool(spec)
    running = asyncio.create_task(pool.run_group(pool.tasks.get("train", 0), 3))
    while pool.ledger.buffered < 3:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (pool.ledger.buffered, pool.ledger.dropped) == (0, {"cancelled": 3})


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(failures=st.integers(0, 6), retries=st.integers(0, 2), size=st.integers(1, 4), groups=st.integers(1, 3))
def test_every_rollout_comes_out_once_whatever_fails(flaky, failures, retries, size, groups) -> None:
    async def play() -> None:
        flaky.load().Config  # noqa: B018
        pool = _pool(flaky, config={"failures": failures}, retries=retries, concurrency=3, minimum_group=1)
        tasks = [pool.tasks.get("train", index, seed=failures * 100 + retries * 10 + size) for index in range(groups)]
        out = [group async for group in pool.run(tasks, size)]
        kept = sum(len(group.rollouts) for group in out)
        lost = sum(len(group.dropped) for group in out)
        assert kept + lost == size * groups == pool.ledger.issued
        assert (pool.ledger.buffered, pool.ledger.dropped.total()) == (kept, lost)
        members = sorted((g.task.id, r.member) for g in out for r in (*g.rollouts, *g.dropped))
        assert len(set(members)) == len(members)

    asyncio.run(play())


async def test_the_watchdog_names_the_environment_and_the_line(write_environment) -> None:
    body = """
class Blocking(Environment):
    async def reset(self, *, seed=None, options=None):
        return "x", {}
    async def step(self, action):
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            pass
        return "", 1.0, True, False, {}
"""
    spec = write_environment(body, "Blocking")
    pool = _pool(spec)
    async with Watchdog(seconds=0.3) as watchdog:
        await pool.run_group(pool.tasks.get("train", 0), 1)
    (block,) = watchdog.blocks
    assert "environment 'blocking'" in block.task
    assert block.file.endswith("probe.py")
    assert block.line in (8, 9)
    assert block.function == "step"
    assert "make the method a plain def" in str(block)


async def test_the_log_tells_a_line_that_blocks_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Watchdog(seconds=0.2) as watchdog:
        for _ in range(3):
            time.sleep(0.5)  # noqa: ASYNC251
            await asyncio.sleep(0.15)
    assert len({(block.file, block.line) for block in watchdog.blocks}) == 1 < len(watchdog.blocks)
    assert len(caplog.records) == 1


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not say how long a thread waits")
def test_the_watchdog_tells_a_process_without_a_cpu_from_code_that_blocks() -> None:
    script = """
import asyncio
from envhub.agents.executors import Watchdog
def work():
    for _ in range(2_000_000):
        pass
async def main():
    async with Watchdog(seconds=0.3) as watchdog:
        print("ready", flush=True)
        while not any(block.is_starved for block in watchdog.blocks):
            work()
            await asyncio.sleep(0)
    print([str(block) for block in watchdog.blocks if block.is_starved][0])
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    hogs = []
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        one = {min(os.sched_getaffinity(process.pid))}
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), one)
        for _ in range(12):
            hogs.append(subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]))
            os.sched_setaffinity(hogs[-1].pid, one)
        said, _ = process.communicate(timeout=60)
    finally:
        for started in (process, *hogs):
            started.kill()
            started.wait()
    assert "this process got no CPU: the machine is overloaded" in said


async def test_the_watchdog_is_silent_about_a_loop_that_runs() -> None:
    async with Watchdog(seconds=0.3) as watchdog:
        await asyncio.sleep(0.7)
    assert watchdog.blocks == []


async def test_a_group_that_was_yielded_is_not_dropped_by_close(counter, executor_of) -> None:
    pool = RolloutPool(executor_of(lambda messages, request: "stop"), counter)
    async for group in pool.run([pool.tasks.get("train", 0)], 1):
        pool.ledger.use(len(group.rollouts))
    await pool.close()
    assert (pool.ledger.used, pool.ledger.dropped.total(), pool.ledger.buffered) == (1, 0, 0)
    async for group in pool.run([pool.tasks.get("train", 1)], 2):
        await pool.close()
        pool.ledger.use(len(group.rollouts))
    assert (pool.ledger.used, pool.ledger.issued) == (3, 3)
