from hypothesis import given
from hypothesis import strategies as st

from envhub import ImagePart, Message, ToolCall
from envhub.agents.rendering import ByteRenderer
from envhub.messages import TextPart

from .conversations import TOOL, Conversation, conversations

BEGIN, END = 256, 257
RENDERER = ByteRenderer()
USER = Message("user", "hello")


def _as_sampled(history: list[Message], said: Message, tools) -> list[int]:
    opening = RENDERER.render(history, tools)
    whole = RENDERER.render([*history, said], tools)
    assert whole[: len(opening)] == opening
    rest = whole[len(opening) :]
    return rest[: rest.index(END) + 1]


@given(conversation=conversations() | conversations(reasoning=True))
def test_turn_by_turn_rendering_is_the_whole_rendering(conversation: Conversation) -> None:
    history, tools = list(conversation.opening), conversation.tools
    ids = RENDERER.render(history, tools)
    for said, new in conversation.rounds:
        sampled = _as_sampled(history, said, tools)
        history.append(said)
        following = RENDERER.continue_from(history, sampled, new, tools)
        ids += [*sampled, *(following.token_ids or ())]
        history.extend(new)
    assert ids == RENDERER.render(history, tools)
    assert ids.count(BEGIN) == len(history) + 1 + bool(tools)
    assert ids.count(END) == len(history) + bool(tools)


@given(st.text(alphabet=st.characters()))
def test_any_text_is_read_back_even_with_lone_surrogates(text: str) -> None:
    ids = RENDERER.encode(text)
    assert all(0 <= id < BEGIN for id in ids)
    assert RENDERER.decode((*ids, END)) == RENDERER.decode(ids) == text


@given(st.lists(st.integers(0, END)))
def test_any_ids_can_be_decoded(ids: list[int]) -> None:
    assert isinstance(RENDERER.decode(ids), str)


def test_a_conversation_is_bytes_between_two_special_ids() -> None:
    assert RENDERER.render([Message("user", "é")]) == [
        *(BEGIN, *b"user\n", *"é".encode(), END, 10),
        *(BEGIN, *b"assistant\n"),
    ]


def test_a_turn_that_was_cut_off_is_closed_first() -> None:
    history = [USER, Message("assistant", "x")]
    closed = RENDERER.continue_from(history, [120, END], [USER]).token_ids
    assert RENDERER.continue_from(history, [120], [USER]).token_ids == (END, *closed)
    assert RENDERER.continue_from(history, [], [USER]).token_ids == (END, *closed)


def test_all_that_a_message_holds_is_shown() -> None:
    call = ToolCall("c", "add", {"a": 1})
    malformed = ToolCall("c", "add", None, "{a", "not JSON")
    said = Message("assistant", "so", (call, malformed), reasoning="hm")
    seen = Message("user", (TextPart("look"), ImagePart(b"abc")))
    text = RENDERER.decode(RENDERER.render([seen, said], [TOOL]))
    for part in ("look<image 3>", "<think>hm</think>so", '"arguments": {"a": 1}', '"arguments": {a}', '"name": "add"'):
        assert part in text
