"""How the adapter reads actions, and answers what is none."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envhub.environments.gymnasium_adapter import GymnasiumEnvironment
from envhub.errors import ModelFault, UserError
from envhub.messages import Message
from envhub.spaces import from_gymnasium

TOYS = f"{__file__.removesuffix('test_actions.py')}toys.py"


def echo(space: str) -> GymnasiumEnvironment:
    environment = from_gymnasium(f"{TOYS}:echo", kwargs={"space": space}).make()
    assert isinstance(environment, GymnasiumEnvironment)
    environment.reset(seed=0)
    return environment


def text_of(observation: Any) -> str:
    assert isinstance(observation, Message)
    return observation.text


class TestActions:
    @pytest.mark.parametrize(
        ("space", "text", "taken"),
        [
            ("discrete", "1", "1"),
            ("discrete", "not 0 but\n -1", "-1"),
            ("discrete", "The answer is 1.", "1"),
            ("discrete", "0 or 1\nthat is the question", "1"),
            ("box", "[0.5, -1]", "0.5, -1."),
            ("box", "I take:\n```json\n[0.5, 0]\n```", "0.5, 0."),
            ("box", "so [1, 1] it is", "1., 1."),
            ("scalar", "let me see\n0.25", "0.25"),
            ("bytes", "[0, 255]", "0, 255"),
            ("wide", "[0.5, 1e300]", "5.e-001, 1.e+300"),
            ("multi_discrete", "[1, 2]", "1, 2"),
            ("multi_binary", "[1, 0, 1]", "1, 0, 1"),
            ("tuple", "[1, [0.5]]", "1"),
            ("dict", '{"move": 1, "say": "hello"}', "hello"),
            ("dict", 'I do\n{"move": 1, "say": "hello"}', "hello"),
            ("text", "hello", "hello"),
            ("text", " hello\n", "hello"),
        ],
    )
    def test_actions_of_every_space_are_read(self, space: str, text: str, taken: str) -> None:
        observation, reward, terminated, truncated, info = echo(space).step(text)
        assert text_of(observation).startswith("took") and taken in text_of(observation)
        assert (type(reward), reward) == (float, 0.5)
        assert (terminated, truncated) == (False, False)
        assert type(terminated) is bool and "invalid_action" not in info

    @pytest.mark.parametrize(
        ("space", "text", "problem"),
        [
            ("discrete", "2", "a whole number from -1 to 1"),
            ("discrete", "0.5", "a whole number from -1 to 1"),
            ("discrete", "go", "names no action"),
            ("discrete", "9" * 5000, "a whole number"),
            ("box", "[0.5]", "a list of shape [2] of numbers from -1 to 1"),
            ("box", "[0.5, 2]", "from -1 to 1"),
            ("box", "[NaN, 0]", "from -1 to 1"),
            ("box", "[1e309, 0]", "from -1 to 1"),
            ("box", "[true, 0]", "from -1 to 1"),
            ("box", "[[0, 0], [0]]", "from -1 to 1"),
            ("box", "[" * 100_000, "no JSON"),
            ("box", f"[{'9' * 400}, 0]", "from -1 to 1"),
            ("box", '["a", "b"]', "from -1 to 1"),
            ("bytes", "[0, 256]", "whole numbers from 0 to 255"),
            ("bytes", "[0.5, 0]", "whole numbers from 0 to 255"),
            ("wide", "[0, -Infinity]", "from [0.0, -inf] to [1.0, inf]"),
            ("multi_discrete", "[2, 2]", "whole numbers from [0, 0] to [1, 2]"),
            ("multi_binary", "[2, 0, 0]", "zeros and ones"),
            ("tuple", "[1]", "a list of 2 items"),
            ("dict", '{"move": 1}', '"say": a text'),
            ("dict", '{"move": "1", "say": ""}', "a whole number from 0 to 1"),
            ("text", "hello world", "a text of 1 to 5"),
        ],
    )
    def test_invalid_actions_are_answered(self, space: str, text: str, problem: str) -> None:
        observation, reward, terminated, truncated, info = echo(space).step(text)
        assert text_of(observation).startswith("Invalid action: ")
        assert problem in info["invalid_action"] and problem in text_of(observation)
        assert (reward, terminated, truncated) == (0.0, False, False)

    @pytest.mark.parametrize(
        ("text", "row"),
        [("Down", 1), ("I go DOWN.", 1), ("up or down?\n**down**", 1), ("left, no: 1", 1), ("downtown\nright", 0)],
    )
    def test_the_last_name_on_the_last_line_with_one_counts(self, text: str, row: int) -> None:
        environment = GymnasiumEnvironment(id="FrozenLake-v1", kwargs={"is_slippery": False})
        environment.reset(seed=0)
        assert f"row {row}," in text_of(environment.step(text)[0])

    def test_own_names_replace_the_known_ones(self) -> None:
        environment = GymnasiumEnvironment(
            id="FrozenLake-v1", kwargs={"is_slippery": False}, actions={"go south": 1, "go east": 2}
        )
        assert "go south (1), go east (2)" in text_of(environment.reset(seed=0)[0])
        assert "row 1, column 0" in text_of(environment.step("Go south!")[0])
        assert "invalid_action" in environment.step("left")[4]

    @pytest.mark.parametrize(
        ("actions", "problem"),
        [
            ({"jump": 4}, "not in Discrete"),
            ({"1": 1}, "no name"),
            ({" a": 1}, "no name"),
            ({"a": 1, "A": 2}, "in case"),
        ],
    )
    def test_names_that_do_not_fit_are_errors(self, actions: dict[str, int], problem: str) -> None:
        with pytest.raises(UserError, match=problem):
            GymnasiumEnvironment(id="FrozenLake-v1", actions=actions).reset(seed=0)

    def test_names_for_a_box_are_an_error(self) -> None:
        with pytest.raises(UserError, match="Discrete"):
            GymnasiumEnvironment(id="Pendulum-v1", actions={"push": 1}).reset(seed=0)

    def test_a_space_that_cannot_be_written_is_an_error(self) -> None:
        with pytest.raises(UserError, match="kind Graph"):
            echo("graph")


class TestInvalidActions:
    def test_one_more_than_the_limit_in_a_row_is_a_model_fault(self) -> None:
        environment = GymnasiumEnvironment(id="FrozenLake-v1", kwargs={"is_slippery": False})
        environment.reset(seed=0)
        for _ in range(3):
            environment.step("?")
        environment.step("left")
        for _ in range(3):
            environment.step("?")
        with pytest.raises(ModelFault, match="4 invalid actions in a row"):
            environment.step("?")

    def test_the_count_begins_anew_with_the_episode(self) -> None:
        environment = GymnasiumEnvironment(id="FrozenLake-v1", invalid_limit=1)
        for _ in range(3):
            environment.reset(seed=0)
            environment.step("?")
        with pytest.raises(ModelFault):
            environment.step("?")

    def test_they_do_not_move_the_world(self) -> None:
        def last(texts: list[str]) -> str:
            environment = GymnasiumEnvironment(id="FrozenLake-v1")
            environment.reset(seed=4)
            return [text_of(environment.step(text)[0]) for text in texts][-1]

        assert last(["right", "?", "down", "?", "right"]) == last(["right", "down", "right"])

    @pytest.mark.parametrize(
        "config",
        [
            *({"id": env_id, "invalid_limit": 1000} for env_id in ("FrozenLake-v1", "MiniGrid-Empty-5x5-v0")),
            *(
                {"id": f"{TOYS}:echo", "kwargs": {"space": space}, "invalid_limit": 1000}
                for space in ("discrete", "box", "bytes", "wide", "tuple", "dict", "multi_binary", "text")
            ),
        ],
        ids=lambda config: config["kwargs"]["space"] if "kwargs" in config else config["id"],
    )
    def test_junk_never_raises(self, config: dict[str, Any]) -> None:
        environment = GymnasiumEnvironment(config)
        prompt = text_of(environment.reset(seed=0)[0])
        junk = [
            "",
            " \n\t",
            "x" * 200_000,
            "1" * 200_000,
            "[" * 200_000,
            "[1," * 50_000,
            "left " * 50_000,
            "nan",
            "NaN",
            "[NaN, Infinity]",
            "1e309",
            "-1e309",
            "[1e309, -1e309]",
            "\x00\x1b[31m\x7f\ud800",
            "{" * 1000,
            '{"a": ' * 1000,
            "[]",
            "{}",
            "null",
            "[null, null]",
            "[[], 1]",
            "[" * 100 + "]" * 100,
            "٣",
            "²",
            prompt,
        ]
        for text in junk:
            _, _, terminated, truncated, _ = environment.step(text)
            if terminated or truncated:
                environment.reset(seed=0)
        environment.close()

    @settings(max_examples=60, deadline=None)
    @given(text=st.text() | st.from_regex(r"[\[\]{}0-9.,:\"eE+\-a ]{0,40}"), data=st.data())
    def test_any_text_is_taken_or_answered(self, text: str, data: st.DataObject) -> None:
        environment = echo(data.draw(st.sampled_from(["discrete", "box", "bytes", "wide", "tuple", "dict", "scalar"])))
        observation, *_ = environment.step(text)
        assert text_of(observation).startswith(("took", "Invalid action: "))
