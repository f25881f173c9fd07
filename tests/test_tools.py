import json
import time

import pytest

from envhub import (
    Action,
    GeneratedTasks,
    Message,
    Observation,
    Task,
    ToolCall,
    ToolEnvironment,
    ToolError,
    reward,
    tool,
)
from envhub.driver import Driver
from envhub.errors import EnvironmentFault, UserError
from envhub.tools import Tool


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first
    """
    return a + b


@reward
def right(text, answer):
    return text.strip() == answer


class Calculator(ToolEnvironment):
    tasks = GeneratedTasks("sums", lambda rng: Task(prompt="1+1?", answer="2"))
    functions = (add,)
    rewards = (right,)
    tool_seconds = 0.5

    async def prepare(self, task):
        self.memory = 0

    @tool
    def remember(self, value: int) -> str:
        """Keep a number."""
        if value < 0:
            raise ToolError("only positive numbers")
        self.memory = value
        return "kept"

    @tool
    async def recall(self) -> dict:
        """Give the number back."""
        return {"value": self.memory}

    @tool
    def explode(self) -> str:
        """Fail."""
        raise RuntimeError("boom")

    @tool
    def hang(self) -> str:
        """Hang."""
        time.sleep(2)
        return ""


def _call(name: str, arguments: dict | None, *, error: str | None = None) -> Action:
    return Action("", (ToolCall("c1", name, arguments, "raw", error),))


async def _started() -> Calculator:
    env = Calculator()
    await env.reset(seed=0)
    return env


def test_a_typed_function_becomes_a_specification() -> None:
    spec = Tool.of(add).spec
    assert (spec.name, spec.description) == ("add", "Add two numbers.")
    assert spec.parameters["required"] == ["a"]
    assert spec.parameters["properties"]["a"] == {"type": "integer", "description": "the first"}
    assert spec.parameters["properties"]["b"]["default"] == 1


async def test_the_first_observation_offers_the_tools() -> None:
    env = Calculator()
    observation, _ = await env.reset(seed=0)
    assert isinstance(observation, Observation)
    assert {spec.name for spec in observation.tools} == {"add", "remember", "recall", "explode", "hang"}


async def test_calls_are_run_and_answered_in_order() -> None:
    env = await _started()
    calls = (ToolCall("1", "remember", {"value": 7}), ToolCall("2", "recall", {}), ToolCall("3", "add", {"a": 2}))
    observation, value, terminated, truncated, info = await env.step(Action("", calls))
    assert [(m.role, m.tool_call_id, m.text) for m in observation.messages] == [
        ("tool", "1", "kept"),
        ("tool", "2", '{"value": 7}'),
        ("tool", "3", "3"),
    ]
    assert (value, terminated, truncated, info["tool_errors"]) == (0.0, False, False, 0)
    _, value, terminated, _, _ = await env.step("2")
    assert (value, terminated) == (1.0, True)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (_call("ad", {"a": 1}), "there is no tool 'ad'.*did you mean 'add'"),
        (_call("add", None, error="not JSON"), "the arguments of 'add' could not be read: not JSON"),
        (_call("add", {}), "add: argument 'a': Field required"),
        (_call("add", {"a": "x"}), "add: argument 'a': Input should be a valid integer"),
        (_call("add", {"a": 1, "c": 2}), "add: argument 'c': Extra inputs"),
        (_call("remember", {"value": -1}), "remember: only positive numbers"),
        (Action("<tool_call>{", parse_error="cut off"), "the tool call could not be read: cut off"),
    ],
)
async def test_a_malformed_call_is_answered_to_the_model(action: Action, message: str) -> None:
    env = await _started()
    observation, value, terminated, _, info = await env.step(action)
    import re

    assert re.search(f"^error: .*{message}", observation.messages[0].text)
    assert (value, terminated, info["tool_errors"]) == (0.0, False, 1)


@pytest.mark.parametrize(
    ("name", "message"), [("explode", "RuntimeError: boom"), ("hang", "tool 'hang' did not return")]
)
async def test_a_tool_that_fails_or_hangs_is_an_environment_fault(name: str, message: str) -> None:
    from envhub import EnvironmentSpec

    driver = Driver(EnvironmentSpec("calculator", f"{__file__}:Calculator"))
    await driver.reset(driver.tasks.get("train", 0))
    with pytest.raises(EnvironmentFault, match=message):
        await driver.step(_call(name, {}))
    await driver.close()


def test_a_tool_without_annotations_is_refused() -> None:
    def vague(x):
        return x

    with pytest.raises(UserError, match="tool 'vague': parameter 'x' needs a type annotation"):
        Tool.of(vague)


async def test_a_tool_may_answer_with_an_image() -> None:
    from PIL import Image

    from envhub.messages import as_content

    class Camera(ToolEnvironment):
        tasks = GeneratedTasks("see", lambda rng: Task(prompt="look", answer="red"))
        rewards = (right,)

        @tool
        def look(self) -> Message:
            """Take a picture."""
            return Message("tool", as_content(["here", Image.new("RGB", (2, 2), "red")]))

    env = Camera()
    await env.reset(seed=0)
    observation, *_ = await env.step(_call("look", {}))
    (message,) = observation.messages
    assert (message.role, message.name, message.text, len(message.images)) == ("tool", "look", "here", 1)
    json.dumps(observation.to_dict())
