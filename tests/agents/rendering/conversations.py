"""Random conversations, as an episode makes them: an opening, then turns that are answered."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from envhub.messages import Message, ToolCall, ToolSpec

TOOL = ToolSpec("add", "Adds <|im_end|> é.", {"type": "object", "properties": {"a": {"type": "integer"}}})

_SCRAPS = [
    "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|start_header_id|>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]",
    "<think>", "</think>", "<tool_call>", "\ue0f0", "\ue0f1", "\ue0f02\ue0f1", "\n", "\n\n", "  ", "\t", "é", "🙂",
    "\u200d", "\u0301", "user", "assistant", "{{ x }}", "{% raw %}", "said probe", "\ud800",
]  # fmt: skip
texts = st.lists(st.sampled_from(_SCRAPS) | st.text(max_size=8), max_size=5).map("".join)
answers = texts.filter(lambda text: not text[:1].isspace())  # a leading space would join the opening's last token
_values = st.none() | st.booleans() | st.integers(-9, 9) | texts | st.lists(texts, max_size=2)
_arguments = st.dictionaries(texts, _values, max_size=2)


@dataclass(frozen=True)
class Conversation:
    """`opening`, then what the assistant said and what it was answered, in turn."""

    opening: tuple[Message, ...]
    rounds: tuple[tuple[Message, tuple[Message, ...]], ...]
    tools: tuple[ToolSpec, ...]


@st.composite
def conversations(draw: st.DrawFn, reasoning: bool = False) -> Conversation:
    """Conversations with or without a system message and tools; with `reasoning`, every turn has some."""
    tools = draw(st.sampled_from([(), (TOOL,)]))
    users = st.lists(texts.map(lambda text: Message("user", text)), min_size=1, max_size=2).map(tuple)
    head = draw(st.just(()) | texts.map(lambda text: (Message("system", text),)))
    rounds = []
    for turn in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 2)) if tools else 0
        calls = tuple(ToolCall(f"call{turn:04}{i}", "add", draw(_arguments)) for i in range(count))
        said = Message("assistant", draw(answers), calls)
        if reasoning:
            said = replace(said, reasoning="hm" + draw(texts) + "so")
        results = tuple(Message("tool", draw(texts), tool_call_id=call.id, name="add") for call in calls)
        rounds.append((said, results or draw(users)))
    return Conversation((*head, *draw(users)), tuple(rounds), tools)
