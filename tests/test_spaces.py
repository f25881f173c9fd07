"""Our environments as Gymnasium environments."""

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env

from envhub.environment import Environment, EnvironmentConfig
from envhub.errors import DeadlineError, EnvironmentFault, ModelFault, UserError
from envhub.limits import Limits
from envhub.messages import Action, Message, Observation, ToolCall
from envhub.rewards import reward
from envhub.single_turn import SingleTurnEnvironment
from envhub.spaces import GymnasiumView, UnicodeText, as_gymnasium, from_gymnasium
from envhub.specs import EnvironmentSpec
from envhub.tasks import GeneratedTasks, ListTasks, Task
from envhub.tools import ToolEnvironment, tool


class CountdownEnvironment(Environment):
    """Counts down from a number drawn by the generator."""

    class Config(EnvironmentConfig):
        highest: int = 1000

    limits = Limits(max_turns=5)
    shared: ClassVar[dict] = {"list": [1, 2]}

    def reset(self, *, seed=None, options=None):
        self.left = self.rng.randrange(3, self.config.highest)
        return f"{self.left} to go", {"shared": self.shared}

    def step(self, action):
        text = Action.of(action).text
        if text == "fault":
            raise ModelFault("no such move")
        if text == "crash":
            raise RuntimeError("boom")
        if text == "hang":
            time.sleep(0.5)
        self.left = 0 if text == "finish" else self.left - 1
        noise = self.rng.random()
        return f"{self.left} to go ({noise})", 1, self.left == 0, False, {"left": self.left, "shared": self.shared}


class AsyncEnvironment(CountdownEnvironment):
    """The same with async methods that need their loop to stay the same."""

    async def reset(self, *, seed=None, options=None):
        self.loop = asyncio.get_running_loop()
        return super().reset(seed=seed, options=options)

    async def step(self, action):
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return super().step(action)

    async def close(self):
        self.closed = True


@reward
def exact(task, text) -> float:
    return float(text.strip() == task.answer)


class SumEnvironment(SingleTurnEnvironment):
    tasks = GeneratedTasks("sums", lambda rng: Task(f"{(a := rng.randrange(10**6))} + 1?", str(a + 1)))
    rewards = (exact,)


class ClockEnvironment(ToolEnvironment):
    tasks = ListTasks("clock", {"train": [Task(f"What time is it in {place}?", place) for place in "abcdefgh"]})
    rewards = (exact,)

    @tool
    def clock(self, place: str) -> str:
        """The time somewhere.

        Args:
            place: A city.
        """
        return f"noon in {place}"


@contextmanager
def warnings_as_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def view() -> Iterator[GymnasiumView]:
    env = as_gymnasium(CountdownEnvironment)
    yield env
    env.close()


@pytest.mark.parametrize("cls", [CountdownEnvironment, AsyncEnvironment, SumEnvironment, ClockEnvironment])
def test_gymnasiums_own_checker_passes_without_warnings(cls):
    with warnings_as_errors():
        check_env(as_gymnasium(cls), skip_render_check=True)


@pytest.mark.parametrize("cls", [CountdownEnvironment, SumEnvironment])
def test_the_checker_passes_with_rendering(cls):
    with warnings_as_errors():
        # Other render modes can only be tried on what gymnasium.make can make again.
        warnings.filterwarnings("ignore", message=".*alternative render modes.*")
        check_env(as_gymnasium(cls(), render_mode="ansi"))


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CartPole-v1"])
def test_there_and_back_again_passes_the_checker(env_id):
    with warnings_as_errors():
        check_env(as_gymnasium(from_gymnasium(env_id)), skip_render_check=True)


def test_instances_classes_and_specs_are_equally_good():
    instance = CountdownEnvironment(highest=5)
    from_instance, from_class = as_gymnasium(instance), as_gymnasium(CountdownEnvironment)
    from_spec = as_gymnasium(EnvironmentSpec("lake", from_gymnasium("FrozenLake-v1").target, {"id": "FrozenLake-v1"}))
    try:
        text, _ = from_instance.reset(seed=1)
        assert text == f"{instance.left} to go" and instance.left < 5
        assert "to go" in from_class.reset(seed=1)[0]
        assert "FrozenLake" in from_spec.reset(seed=1)[0]
    finally:
        for env in (from_instance, from_class, from_spec):
            env.close()


def test_the_same_seed_gives_the_same_episode_and_another_seed_another(view):
    def episode(seed):
        observation, info = view.reset(seed=seed)
        return observation, info, [view.step("on") for _ in range(3)]

    first, again, other = episode(7), episode(7), episode(8)
    assert first == again
    assert first[0] != other[0]


def test_a_reset_without_a_seed_goes_on_with_the_generator(view):
    def run():
        return [view.reset(seed=3)[0], view.reset()[0], view.reset()[0]]

    first = run()
    assert len(set(first)) == 3
    assert run() == first


def test_two_interleaved_give_the_same_episodes_as_apart():
    def play(*envs):
        texts = [[env.reset(seed=seed)[0]] for seed, env in enumerate(envs)]
        for _ in range(3):
            for log, env in zip(texts, envs, strict=True):
                log.append(env.step("on")[0])
        return texts

    one, two = as_gymnasium(AsyncEnvironment), as_gymnasium(AsyncEnvironment)
    try:
        together = play(one, two)
        assert play(one)[0] == together[0]
        two.reset(seed=1)
        assert [two.step("on")[0] for _ in range(3)] == together[1][1:]
    finally:
        one.close()
        two.close()


def test_rewards_are_floats_and_ends_are_bools(view):
    view.reset(seed=0)
    observation, value, terminated, truncated, info = view.step("finish")
    assert observation in view.observation_space
    assert (type(value), value) == (float, 1.0)
    assert (terminated, truncated) == (True, False)
    assert info["left"] == 0
    assert info["messages"] == [{"role": "user", "content": observation}]


def test_a_step_before_reset_and_after_the_end_needs_a_reset(view):
    with pytest.raises(ResetNeeded):
        view.step("on")
    view.reset(seed=0)
    view.step("finish")
    with pytest.raises(ResetNeeded):
        view.step("on")
    view.reset()
    view.step("on")


def test_the_limit_of_turns_truncates(view):
    view.reset(seed=0)
    ends = [view.step("on")[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    with pytest.raises(ResetNeeded):
        view.step("on")


def test_the_tasks_own_end_in_the_last_turn_is_not_truncation(view):
    view.reset(seed=0)
    for _ in range(4):
        view.step("on")
    assert view.step("finish")[2:4] == (True, False)


def test_a_model_fault_ends_the_episode_with_reward_0(view):
    view.reset(seed=0)
    text, value, terminated, truncated, info = view.step("fault")
    assert (text, value, terminated, truncated) == ("", 0.0, True, False)
    assert info["model_fault"] == "no such move"


def test_a_crash_is_raised_and_the_next_reset_begins_anew(view):
    view.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="boom"):
        view.step("crash")
    with pytest.raises(ResetNeeded):
        view.step("on")
    view.reset(seed=0)
    assert view.step("on")[1] == 1.0


def test_a_hang_meets_the_deadline_and_the_next_reset_begins_anew():
    class HastyEnvironment(CountdownEnvironment):
        limits = Limits(step_seconds=0.1)

    env = as_gymnasium(HastyEnvironment)
    try:
        env.reset(seed=0)
        with pytest.raises(DeadlineError):
            env.step("hang")
        env.reset(seed=0)
        env.step("on")
    finally:
        env.close()


def test_infos_share_nothing_with_the_environment(view):
    info = view.reset(seed=0)[1]
    info["shared"]["list"].append(3)
    assert CountdownEnvironment.shared == {"list": [1, 2]}


def test_tool_calls_travel_as_actions_and_tools_are_in_the_info():
    env = as_gymnasium(ClockEnvironment)
    try:
        _, info = env.reset(seed=0)
        assert [offered["function"]["name"] for offered in info["tools"]] == ["clock"]
        text, _, terminated, _, info = env.step(Action(tool_calls=(ToolCall("1", "clock", {"place": "Rome"}),)))
        assert text == "noon in Rome" and not terminated
        assert info["messages"][0]["role"] == "tool"
    finally:
        env.close()


def test_a_task_or_a_split_can_be_asked_for():
    env = as_gymnasium(SumEnvironment)
    try:
        assert env.reset(seed=0, options={"task": Task("1 + 1?", "2")})[0] == "1 + 1?"
        assert env.step("2")[1] == 1.0
        assert env.reset(seed=0, options={"split": "eval"})[0] != env.reset(seed=0)[0]
        with pytest.raises(UserError, match="did you mean 'split'"):
            env.reset(options={"splt": "eval"})
        with pytest.raises(UserError, match="did you mean 'eval'"):
            env.reset(options={"split": "evla"})
        with pytest.raises(UserError, match=r"envhub\.Task"):
            env.reset(options={"task": "1 + 1"})
    finally:
        env.close()


def test_it_works_inside_a_running_event_loop(view):
    async def main():
        view.reset(seed=0)
        return view.step("on")[1]

    assert asyncio.run(main()) == 1.0


def test_close_closes_the_environment_frees_its_thread_and_is_final():
    before = set(threading.enumerate())
    instance = AsyncEnvironment()
    env = as_gymnasium(instance)
    env.reset(seed=0)
    assert set(threading.enumerate()) - before
    env.close()
    env.close()
    assert instance.closed
    assert not set(threading.enumerate()) - before
    for call in (env.reset, lambda: env.step("on")):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_a_forgotten_environment_frees_its_loop():
    before = set(threading.enumerate())
    env = as_gymnasium(AsyncEnvironment)
    env.reset(seed=0)
    del env
    assert not set(threading.enumerate()) - before


def test_mistakes_are_named():
    with pytest.raises(UserError, match="did you mean 'ansi'"):
        as_gymnasium(CountdownEnvironment, render_mode="ansii")
    with pytest.raises(UserError, match="not 'guess'"):
        as_gymnasium("guess")
    env = as_gymnasium(CountdownEnvironment)
    env.reset(seed=0)
    with pytest.raises(UserError, match="not int"):
        env.step(3)
    env.close()


def test_rendering_gives_the_conversation():
    env = as_gymnasium(CountdownEnvironment, render_mode="ansi")
    try:
        first, _ = env.reset(seed=0)
        second = env.step("on")[0]
        assert env.render() == f"user: {first}\nassistant: on\nuser: {second}"
    finally:
        env.close()


def test_observations_of_several_messages_and_any_text_are_in_the_space():
    class OddEnvironment(Environment):
        def reset(self, *, seed=None, options=None):
            return Observation((Message("system", "s\u0000\ud800"), Message("user", "ü"))), {}

        def step(self, action):
            return Observation(), 0.0, True, False, {}

    env = as_gymnasium(OddEnvironment)
    text, info = env.reset(seed=0)
    assert text == "s\u0000\ud800\nü" and text in env.observation_space
    assert [message["role"] for message in info["messages"]] == ["system", "user"]
    env.close()


def test_gymnasium_wrappers_fit():
    env = gymnasium.wrappers.TimeLimit(as_gymnasium(CountdownEnvironment), 2)
    env.reset(seed=0)
    assert env.step("on")[3] is False
    assert env.step("on")[3] is True
    env.close()


class TestUnicodeText:
    def test_samples_are_seeded_and_printable(self):
        one, two = UnicodeText(seed=4), UnicodeText(seed=4)
        samples = [one.sample() for _ in range(50)]
        assert samples == [two.sample() for _ in range(50)]
        assert len(set(samples)) > 40
        assert all(text in one and text.isascii() and text.isprintable() and text for text in samples)
        assert all(type(text) is str for text in samples)

    def test_holds_every_str_and_nothing_else(self):
        space = UnicodeText()
        assert "" in space and "\ud800\x00" in space
        assert 1 not in space and None not in space and b"x" not in space

    def test_takes_no_mask(self):
        with pytest.raises(ValueError, match="without mask"):
            UnicodeText().sample(mask=1)

    def test_compares_by_kind(self):
        assert UnicodeText(seed=1) == UnicodeText(seed=2)
        assert UnicodeText() != gymnasium.spaces.Discrete(2)


def make_lake(**kwargs):
    return gymnasium.make("FrozenLake-v1", **kwargs)


class TestFromGymnasium:
    def test_names_the_adapter_without_importing_it(self):
        spec = from_gymnasium("FrozenLake-v1", max_steps=5)
        assert spec.id == "FrozenLake-v1"
        assert spec.target == "envhub.environments.gymnasium_adapter.environment:GymnasiumEnvironment"
        assert spec.config == {"id": "FrozenLake-v1", "max_steps": 5}

    def test_takes_a_name(self):
        assert from_gymnasium("FrozenLake-v1", name="lake").id == "lake"

    def test_takes_a_factory_or_its_place(self):
        spec = from_gymnasium(CartPoleEnv)
        assert spec.id == "CartPoleEnv"
        assert spec.config["id"].endswith(":CartPoleEnv")
        place = spec.config["id"]
        assert from_gymnasium(place) == spec

    @pytest.mark.parametrize("factory", [lambda: None, (lambda: make_lake)])
    def test_a_factory_without_an_importable_name_is_an_error(self, factory):
        with pytest.raises(UserError, match="cannot be imported by name"):
            from_gymnasium(factory)

    def test_anything_else_is_an_error(self):
        with pytest.raises(UserError, match="not int"):
            from_gymnasium(3)

    def test_a_wrong_key_is_named_when_the_environment_is_made(self):
        with pytest.raises(UserError, match="did you mean 'max_steps'"):
            as_gymnasium(from_gymnasium("FrozenLake-v1", max_step=5))


def test_what_an_environment_raises_does_not_end_the_views_loop(write_environment) -> None:
    body = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        return "x", {}
    async def step(self, action):
        raise KeyboardInterrupt
"""
    view = as_gymnasium(write_environment(body))
    for _ in range(2):
        view.reset()
        with pytest.raises(EnvironmentFault, match="step raised KeyboardInterrupt"):
            view.step("x")
    view.close()
