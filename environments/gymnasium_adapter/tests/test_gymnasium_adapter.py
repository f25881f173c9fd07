"""Gymnasium environments as ours."""

import random
import sys
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from envhub.driver import Driver, StepResult
from envhub.environments.gymnasium_adapter import GymnasiumEnvironment
from envhub.errors import ConfigError, EnvironmentFault, MissingExtraError, UserError
from envhub.messages import Action, Message, TextPart
from envhub.spaces import as_gymnasium, from_gymnasium
from envhub.specs import EnvironmentSpec
from envhub.tasks import Task

TOYS = f"{__file__.removesuffix('test_gymnasium_adapter.py')}toys.py"
TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"
MINIGRID = ("MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0")
NAMES = {
    "FrozenLake-v1": ("left", "down", "right", "up"),
    "CliffWalking-v1": ("up", "right", "down", "left"),
    TAXI: ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack-v1": ("stick", "hit"),
    **dict.fromkeys(MINIGRID, ("left", "right", "forward", "pickup", "drop", "toggle", "done")),
}


def toy(function: str, **config: Any) -> EnvironmentSpec:
    return from_gymnasium(f"{TOYS}:{function}", **config)


def text_of(observation: Any) -> str:
    assert isinstance(observation, Message)
    return observation.text


async def play(driver: Driver, seed: int, steps: int = 30) -> list[Any]:
    """An episode of random named actions, begun again where it ends early; everything that came back."""
    rng = random.Random(seed)
    log: list[Any] = []
    names = NAMES[driver.config["id"]]
    over = True
    for turn in range(steps):
        if over:
            log.append(await driver.reset(Task(seed=seed * 1000 + turn)))
        result = await driver.step(Action(f"I think I go\n{rng.choice(names)}"))
        log.append(result)
        over = result.terminated or result.truncated
    return log


@pytest.mark.parametrize("env_id", NAMES)
async def test_random_play_through_the_driver_is_deterministic_by_seed(env_id: str) -> None:
    logs = []
    for seed in (5, 5, 6):
        driver = Driver(from_gymnasium(env_id))
        logs.append(await play(driver, seed))
        await driver.close()
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]
    assert all("Invalid" not in item.observation.text for item in logs[0] if isinstance(item, StepResult))


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", TAXI, "MiniGrid-DoorKey-5x5-v0"])
async def test_two_interleaved_play_as_apart(env_id: str) -> None:
    kwargs = {"is_slippery": False} if env_id == "FrozenLake-v1" else {}

    async def episodes(seeds: list[int]) -> list[list[str]]:
        drivers = [Driver(from_gymnasium(env_id, kwargs=kwargs)) for _ in seeds]
        texts = [[(await driver.reset(Task(seed=s)))[0].text] for s, driver in zip(seeds, drivers, strict=True)]
        for turn in range(10):
            for log, driver in zip(texts, drivers, strict=True):
                log.append((await driver.step(Action(NAMES[env_id][turn % 4 // 3]))).observation.text)
        for driver in drivers:
            await driver.close()
        return texts

    assert await episodes([1, 2]) == (await episodes([1])) + (await episodes([2]))


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Blackjack-v1", "MiniGrid-Empty-5x5-v0"])
def test_there_and_back_passes_gymnasiums_checker(env_id: str) -> None:
    check_env(as_gymnasium(from_gymnasium(env_id)), skip_render_check=True)


def test_the_seed_is_gymnasiums() -> None:
    reference = gymnasium.make("CartPole-v1")
    for seed in (3, 2**31 + 3, 2**62):
        observation, _ = GymnasiumEnvironment(id="CartPole-v1").reset(options={"task": Task(seed=seed)})
        expected, _ = reference.reset(seed=seed % 2**31)
        assert f"{expected[0]:.4f}" in text_of(observation)
    reference.close()


def test_tasks_never_end_and_differ_by_id() -> None:
    lake, pole = GymnasiumEnvironment(id="FrozenLake-v1").tasks, GymnasiumEnvironment(id="CartPole-v1").tasks
    assert lake.size("train") is None
    assert lake.get("train", 0).seed != lake.get("train", 1).seed
    assert lake.get("train", 0).seed != pole.get("train", 0).seed


@pytest.mark.parametrize("env_id", NAMES)
def test_the_opening_names_the_environment_and_every_action(env_id: str) -> None:
    environment = GymnasiumEnvironment(id=env_id, prompt="Be brave.")
    text = text_of(environment.reset(seed=1)[0])
    assert text.startswith("Be brave.")
    assert env_id in text
    assert all(f"{name} ({number})" in text for number, name in enumerate(NAMES[env_id]))
    environment.close()


class TestObservations:
    def test_frozen_lake_is_a_map_with_the_player(self) -> None:
        environment = GymnasiumEnvironment(id="FrozenLake-v1", kwargs={"is_slippery": False})
        assert text_of(environment.reset(seed=1)[0]).endswith(
            "@FFF\nFHFH\nFFFH\nHFFG\nYou are at row 0, column 0 (both from 0)."
        )
        after, *_ = environment.step("down")
        assert "SFFF\n@HFH\nFFFH\nHFFG\n" in text_of(after) and "row 1, column 0" in text_of(after)

    def test_a_lake_can_be_solved(self) -> None:
        environment = GymnasiumEnvironment(id="FrozenLake-v1", kwargs={"is_slippery": False})
        environment.reset(seed=1)
        steps = [environment.step(name) for name in ("down", "down", "right", "right", "down", "right")]
        assert [step[1:4] for step in steps] == [(0.0, False, False)] * 5 + [(1.0, True, False)]

    def test_taxi_tells_of_the_passenger(self) -> None:
        environment = GymnasiumEnvironment(id=TAXI)
        text = text_of(environment.reset(seed=1)[0])
        assert "The passenger waits at" in text and "@" in text and "\x1b" not in text

    def test_blackjack_tells_the_sum(self) -> None:
        text = text_of(GymnasiumEnvironment(id="Blackjack-v1").reset(seed=1)[0])
        assert "Your cards sum to 20, without a usable ace. The dealer shows 7." in text

    def test_minigrid_is_a_view_with_mission(self) -> None:
        environment = GymnasiumEnvironment(id="MiniGrid-DoorKey-5x5-v0")
        lines = text_of(environment.reset(seed=1)[0]).splitlines()[-8:]
        assert lines[0] == "Mission: use the key to open the door and then get to the goal"
        assert all(len(line) == 7 * 3 - 1 for line in lines[1:])
        assert lines[-2:] == ["?? ?? ## Ky ## ?? ??", "?? ?? Ly ^^ ## ?? ??"]

    def test_minigrid_tells_what_is_carried(self) -> None:
        environment = GymnasiumEnvironment(id="MiniGrid-DoorKey-5x5-v0")
        environment.reset(seed=1)
        assert "You carry: yellow key" in text_of(environment.step("pickup")[0])
        assert "You carry" not in text_of(environment.step("drop")[0])

    def test_arrays_are_compact(self) -> None:
        text = text_of(GymnasiumEnvironment(id=f"{TOYS}:arrays").reset(seed=0)[0])
        assert "large: uint8 array of shape [20, 20] with values from 0 to 0" in text
        assert "pair: (0.123457, 3)" in text
        assert "small: [ 1.5, -2. ]" in text

    def test_images_come_along_when_asked_for(self) -> None:
        environment = GymnasiumEnvironment(id="MiniGrid-Empty-5x5-v0", images=True)
        observation, _ = environment.reset(seed=1)
        assert isinstance(observation, Message) and isinstance(observation.content, tuple)
        assert isinstance(observation.content[0], TextPart) and "Mission" in observation.text
        assert observation.images[0].to_pil().size[0] > 50
        turned = environment.step("left")[0]
        assert isinstance(turned, Message) and turned.images != observation.images

    def test_images_of_what_draws_none_are_an_error(self) -> None:
        environment = GymnasiumEnvironment(id="FrozenLake-v1", images=True, kwargs={"render_mode": "ansi"})
        with pytest.raises(UserError, match="set images to false"):
            environment.reset(seed=1)

    def test_infos_become_plain(self) -> None:
        _, info = GymnasiumEnvironment(id=f"{TOYS}:echo", kwargs={"space": "text"}).reset(seed=0)
        assert info == {"array": [0, 1], "nested": {"number": 3, "thing": "<class 'object'>"}}


class TestEnds:
    def test_max_steps_truncates(self) -> None:
        for config in ({"id": "CartPole-v1"}, {"id": f"{TOYS}:echo", "kwargs": {"space": "discrete"}}):
            environment = GymnasiumEnvironment(config, max_steps=2)
            environment.reset(seed=0)
            assert [environment.step("0")[2:4] for _ in range(2)] == [(False, False), (False, True)]

    def test_a_step_after_the_end_asks_for_a_reset(self) -> None:
        environment = GymnasiumEnvironment(id="CartPole-v1", max_steps=1)
        for _ in range(2):
            with pytest.raises(UserError, match="reset it"):
                environment.step("0")
            environment.reset(seed=0)
            environment.step("0")

    def test_close_is_repeatable_and_reset_opens_again(self) -> None:
        environment = GymnasiumEnvironment(id="CartPole-v1")
        environment.close()
        first = environment.reset(seed=0)
        environment.close()
        environment.close()
        assert environment.reset(seed=0) == first

    async def test_a_crash_of_the_world_is_an_environment_fault(self) -> None:
        driver = Driver(toy("crashing"))
        await driver.reset(Task(seed=0))
        with pytest.raises(EnvironmentFault, match="the world broke"):
            await driver.step(Action("0"))
        await driver.close()


class TestMistakes:
    @pytest.mark.parametrize(
        ("place", "problem"),
        [
            ("FrozenLak-v1", "FrozenLake"),
            ("FrozenLake-v7", "v1"),
            ("nosuch", "nosuch"),
            ("a b", "Malformed"),
            ("MiniGrid-Emty-5x5-v0", "MiniGrid-Empty-5x5"),
            ("no_such_module:Foo-v0", "no_such_module"),
            ("no_such_module:make", "no_such_module"),
            (f"{TOYS}:ecko", "did you mean 'echo'"),
            (f"{TOYS}:NOT_CALLABLE", "cannot be called"),
        ],
    )
    def test_an_unknown_id_is_named_before_anything_runs(self, place: str, problem: str) -> None:
        with pytest.raises(UserError, match=problem):
            Driver(from_gymnasium(place))

    def test_a_key_is_named(self) -> None:
        with pytest.raises(ConfigError, match="did you mean 'images'"):
            GymnasiumEnvironment(id="FrozenLake-v1", image=True)
        with pytest.raises(ConfigError, match="id"):
            GymnasiumEnvironment()

    @pytest.mark.parametrize("place", ["FrozenLake-v1", f"{TOYS}:echo"])
    def test_kwargs_that_do_not_fit_are_an_error(self, place: str) -> None:
        with pytest.raises(UserError, match="cannot be made with kwargs"):
            GymnasiumEnvironment(id=place, kwargs={"bogus": 1}).reset(seed=0)

    def test_a_factory_that_makes_something_else_is_an_error(self) -> None:
        with pytest.raises(UserError, match=r"NoneType, not a gymnasium\.Env"):
            toy("nothing").make().reset(seed=0)

    def test_minigrid_that_is_not_installed_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "minigrid", None)
        with pytest.raises(MissingExtraError, match=r"envhub\[toys\]"):
            GymnasiumEnvironment(id="MiniGrid-Empty-5x5-v0")

    def test_toy_text_that_cannot_draw_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pygame", None)
        with pytest.raises(MissingExtraError, match=r"envhub\[toys\]"):
            GymnasiumEnvironment(id="FrozenLake-v1", images=True).reset(seed=0)
