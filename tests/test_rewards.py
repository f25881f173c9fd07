import asyncio
import math
import os
import time

import pytest

from envhub import Action, RewardContext, Rubric, Task, reward
from envhub.errors import RewardFault, UserError

CONTEXT = RewardContext(Task("2+2?", "4", {"level": 1}, seed=5), Action("4"))


async def test_parameters_are_injected_by_name() -> None:
    def sees(action, text, task, answer, prompt, messages, info, rng, environment, extra=3):
        assert (action.text, text, task.answer, answer, prompt) == ("4", "4", "4", "4", "2+2?")
        assert (messages, info["level"], environment, extra) == ((), 1, None, 3)
        return rng.random()

    first, second = [(await Rubric(sees).score(CONTEXT)).total for _ in range(2)]
    assert first == second


async def test_components_are_weighted_and_recorded_unweighted() -> None:
    @reward(weight=2.0)
    def right(text, answer):
        return text == answer

    @reward(weight=-0.5, name="length")
    async def size(text):
        return len(text)

    @reward(weight=0)
    def watched():
        return 7

    score = await Rubric(right, size, watched).score(CONTEXT)
    assert score.total == 1.5
    assert score.components == {"right": 1.0, "length": 1.0, "watched": 7.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1", [1.0], 1j])
async def test_a_reward_that_is_no_finite_number_is_a_fault(value: object) -> None:
    with pytest.raises(RewardFault, match="reward 'bad' returned"):
        await Rubric(reward(name="bad")(lambda: value)).score(CONTEXT)


async def test_a_reward_that_raises_is_a_fault_that_names_it() -> None:
    def broken(text):
        raise KeyError("gone")

    with pytest.raises(RewardFault, match="reward 'broken' raised KeyError: 'gone'"):
        await Rubric(broken).score(CONTEXT)


@pytest.mark.parametrize("isolation", ["thread", "inline"])
async def test_a_reward_that_hangs_is_a_fault_with_its_deadline(isolation: str) -> None:
    release = asyncio.Event()

    async def waits():
        await release.wait()

    def sleeps():
        time.sleep(1.5)

    made = reward(seconds=0.1, isolation=isolation, name="slow")(waits if isolation == "inline" else sleeps)
    with pytest.raises(RewardFault, match=r"reward 'slow' did not return within 0\.1 s"):
        await Rubric(made).score(CONTEXT)


def hang_holding_the_lock(text):
    return 9 ** (9 ** (9 + len(text)))


def process_id(text):
    return float(os.getpid())


async def test_a_reward_in_a_process_is_killed_and_the_loop_goes_on() -> None:
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.02)
            beats += 1

    ticking = asyncio.create_task(beat())
    # The interpreter's lock is held by the worker, not by this process, so the loop ticks on.
    made = reward(isolation="process", seconds=1.0)(hang_holding_the_lock)
    with pytest.raises(RewardFault, match="process was killed"):
        await made.score(CONTEXT)
    assert beats > 10
    ticking.cancel()
    other = reward(isolation="process")(process_id)
    values = {await other.score(CONTEXT) for _ in range(3)}
    assert len(values) == 1
    assert os.getpid() not in values


def test_a_closure_cannot_run_in_a_process() -> None:
    with pytest.raises(UserError, match="a function of a module"):
        reward(isolation="process")(lambda text: 1.0)


def test_an_unknown_parameter_is_named_with_the_nearest() -> None:
    def wants(txet):
        return 0

    with pytest.raises(UserError, match="asks for 'txet'.*did you mean 'text'"):
        Rubric(wants)


def test_two_rewards_of_one_name_are_refused() -> None:
    def same(text):
        return 0

    with pytest.raises(UserError, match="two rewards are named 'same'"):
        Rubric(same, same)


async def test_a_group_reward_sees_the_whole_group() -> None:
    def shortest(group):
        best = min(len(context.text) for context in group)
        return [float(len(context.text) == best) for context in group]

    rubric = Rubric(reward(weight=2.0)(shortest))
    scores = await rubric.score_group([CONTEXT, RewardContext(CONTEXT.task, Action("four"))])
    assert [score.total for score in scores] == [2.0, 0.0]
    assert (await rubric.score(CONTEXT)).components == {}


async def test_a_group_reward_gives_one_number_for_each() -> None:
    def short(group):
        return [1.0]

    with pytest.raises(RewardFault, match="not one number for each of 2"):
        await Rubric(short).score_group([CONTEXT, CONTEXT])


async def test_concurrent_thread_rewards_do_not_wait_for_each_other() -> None:
    arrived = []

    def wait_for_two():
        arrived.append(1)
        while len(arrived) < 2:
            time.sleep(0.005)
        return 1.0

    made = reward(seconds=5)(wait_for_two)
    assert await asyncio.gather(made.score(CONTEXT), made.score(CONTEXT)) == [1.0, 1.0]
