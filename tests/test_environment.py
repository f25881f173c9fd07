import math
import random

import pytest
from pydantic import ValidationError

from envhub import Environment, EnvironmentConfig, GeneratedTasks, Observation, SingleTurnEnvironment, Task, reward
from envhub.errors import ConfigError
from envhub.limits import Limits


class _Config(EnvironmentConfig):
    size: int = 3
    colour: str = "red"


class DiceEnvironment(Environment):
    Config = _Config

    def reset(self, *, seed=None, options=None):
        return f"{self.rng.random()}", {}

    async def step(self, action):
        return f"{self.rng.random()}", 0.0, False, False, {}


class AsyncDice(DiceEnvironment):
    async def reset(self, *, seed=None, options=None):
        return f"{self.rng.random()}", {}


def test_reset_seeds_the_environments_own_generator_and_no_other() -> None:
    state = random.getstate()
    env = DiceEnvironment()
    first = env.reset(seed=1)
    assert env.reset(seed=1) == first
    assert env.reset(seed=2) != first
    assert random.getstate() == state


async def test_reset_seeds_async_environments_too() -> None:
    env = AsyncDice()
    assert await env.reset(seed=1) == await env.reset(seed=1)


async def test_two_interleaved_environments_play_as_apart() -> None:
    async def steps(env: DiceEnvironment, count: int):
        return [(await env.step("x"))[0] for _ in range(count)]

    apart = []
    for seed in (1, 2):
        env = DiceEnvironment()
        env.reset(seed=seed)
        apart.append(await steps(env, 3))
    one, two = DiceEnvironment(), DiceEnvironment()
    one.reset(seed=1)
    two.reset(seed=2)
    mixed: list[list[str]] = [[], []]
    for _ in range(3):
        mixed[0] += await steps(one, 1)
        mixed[1] += await steps(two, 1)
    assert mixed == apart


def test_a_class_has_a_name_from_its_own() -> None:
    assert DiceEnvironment.name == "dice"
    assert AsyncDice.name == "async_dice"


def test_an_unknown_configuration_key_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="environment 'dice' has no configuration key 'color'.*did you mean 'colour'"):
        DiceEnvironment(color="blue")


def test_an_ill_typed_value_is_named() -> None:
    with pytest.raises(ConfigError, match="environment 'dice': size: .*given 'many'"):
        DiceEnvironment({"size": "many"})


def test_a_configuration_is_frozen_and_overridden_by_keywords() -> None:
    env = DiceEnvironment(_Config(size=5), colour="green")
    assert env.config == _Config(size=5, colour="green")
    with pytest.raises(ValidationError):
        env.config.size = 1


@pytest.mark.parametrize(
    "name", ["max_turns", "max_turn_tokens", "max_episode_tokens", "step_seconds", "episode_seconds"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_limits_are_positive(name: str, value: int) -> None:
    with pytest.raises(ValidationError, match=name):
        Limits(**{name: value})


def test_an_environment_without_a_task_set_has_infinitely_many_seeds() -> None:
    tasks = DiceEnvironment().tasks
    assert tasks.size("train") is None
    assert tasks.get("train", 0).seed != tasks.get("eval", 0).seed != tasks.get("eval", 0, 1).seed


@reward
def exact(text, answer):
    return text == answer


class EchoEnvironment(SingleTurnEnvironment):
    tasks = GeneratedTasks("echo", lambda rng: Task(prompt=(word := rng.choice("abc")), answer=word))
    rewards = (exact,)
    system_prompt = "Repeat."


async def test_a_single_turn_environment_is_a_task_set_and_a_reward() -> None:
    env = EchoEnvironment()
    observation, info = await env.reset(seed=3)
    observation = Observation.of(observation)
    assert [message.role for message in observation.messages] == ["system", "user"]
    _, value, terminated, truncated, info = await env.step(env.oracle())
    assert (value, terminated, truncated) == (1.0, True, False)
    assert info["components"] == {"exact": 1.0}
    task = env.tasks.get("eval", 7)
    observation, _ = await env.reset(seed=0, options={"task": task})
    assert observation.messages[-1].text == task.prompt
    assert (await env.step("zzz"))[1] == 0.0


@pytest.mark.parametrize(
    "given",
    [{"max_turns": 10**30}, {"max_turn_tokens": 10**10}, {"step_seconds": math.inf}, {"turn_seconds": math.nan}],
)
def test_limits_are_within_reason(given) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        Limits(**given)
