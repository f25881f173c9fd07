import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from envhub import Action, ImagePart, Message, Observation, TextPart, ToolCall, ToolSpec
from envhub.messages import as_content

texts = st.text(max_size=30)
arguments = st.dictionaries(texts, st.one_of(st.none(), st.booleans(), st.integers(-9, 9), texts), max_size=3)
calls = st.builds(ToolCall, st.text(min_size=1, max_size=5), texts, arguments, texts)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.one_of(texts, st.lists(st.builds(TextPart, texts), max_size=3).map(tuple)),
    st.lists(calls, max_size=2).map(tuple),
    st.one_of(st.none(), texts),
    st.one_of(st.none(), texts),
    st.one_of(st.none(), st.text(min_size=1, max_size=9)),
)


@given(messages)
def test_a_message_survives_json(message: Message) -> None:
    assert Message.from_dict(json.loads(json.dumps(message.to_dict()))) == message


def test_an_image_survives_json_bit_for_bit() -> None:
    image = Image.new("RGB", (3, 2), (1, 2, 3))
    message = Message("user", as_content(["see", image]))
    back = Message.from_dict(json.loads(json.dumps(message.to_dict())))
    assert back == message
    assert back.images[0].to_pil().tobytes() == image.tobytes()
    assert back.text == "see"


def test_a_link_to_an_image_is_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    with pytest.raises(ValueError, match="links are not fetched"):
        Message.from_dict({"role": "user", "content": [part]})


def test_arguments_that_are_no_json_object_become_an_error_and_keep_their_text() -> None:
    for raw in ("{bad", "[1]", "3"):
        call = {"id": "a", "function": {"name": "f", "arguments": raw}}
        (made,) = Message.from_dict({"role": "assistant", "content": None, "tool_calls": [call]}).tool_calls
        assert made.arguments is None
        assert made.raw == raw
        assert made.error


def test_an_unknown_role_is_refused_with_the_roles_there_are() -> None:
    with pytest.raises(ValueError, match="system, user, assistant, tool"):
        Message("robot", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["hi", Message("user", "hi"), [Message("user", "hi")], Observation((Message("user", "hi"),))]
)
def test_authors_may_return_short_forms_of_an_observation(value: object) -> None:
    assert Observation.of(value) == Observation((Message("user", "hi"),))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [3, None, b"x", [1], {"a": 1}])
def test_anything_else_is_no_observation(value: object) -> None:
    with pytest.raises(TypeError, match="an observation is"):
        Observation.of(value)  # type: ignore[arg-type]


def test_observation_and_action_survive_json() -> None:
    tools = (ToolSpec("f", "does", {"type": "object", "properties": {}}),)
    observation = Observation((Message("user", as_content(ImagePart(b"12"))),), tools)
    assert Observation.from_dict(json.loads(json.dumps(observation.to_dict()))) == observation
    action = Action("t", (ToolCall("1", "f", {"a": 1}),), "why", (), "stop", "odd")
    assert Action.from_dict(json.loads(json.dumps(action.to_dict()))) == action
    assert action.message.tool_calls == action.tool_calls
