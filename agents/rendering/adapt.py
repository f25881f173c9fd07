"""Rules that stand in for what a chat template lacks. Each is found necessary by a probe, and named in the proof."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from envhub.messages import Message, ToolSpec


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Which rules apply.

    `fold_system`: system text goes to the head of the first user message. `tools_as_text`: tools are described in the
    system text. `tool_as_user`: a tool's answer becomes a user message. `merge_same_role`: messages of one role in a row
    become one.
    """

    fold_system: bool = False
    tools_as_text: bool = False
    tool_as_user: bool = False
    merge_same_role: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rules that apply."""
        return tuple(name for name in self.__slots__ if getattr(self, name))


TOOLS_TEXT = 'You may call these tools. To call one, write <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>.\n{tools}'


def adapt(
    messages: Sequence[Message], tools: Sequence[ToolSpec], rules: Adaptation
) -> tuple[list[Message], list[ToolSpec]]:
    """Apply the rules to a conversation."""
    out, offered = list(messages), list(tools)
    if rules.tools_as_text and offered:
        text = TOOLS_TEXT.format(tools="\n".join(json.dumps(tool.to_openai()["function"]) for tool in offered))
        if out and out[0].role == "system":
            out[0] = replace(out[0], content=f"{out[0].text}\n\n{text}")
        else:
            out.insert(0, Message("system", text))
        offered = []
    if rules.tools_as_text:
        out = [_calls_as_text(message) for message in out]
    if rules.tool_as_user:
        out = [_as_user(message) if message.role == "tool" else message for message in out]
    if rules.fold_system:
        out = _fold_system(out)
    if rules.merge_same_role:
        out = _merge(out)
    return out, offered


def _calls_as_text(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = "\n".join(
        f"<tool_call>{json.dumps({'name': call.name, 'arguments': dict(call.arguments or {})})}</tool_call>"
        for call in message.tool_calls
    )
    return replace(message, content=f"{message.text}\n{calls}".lstrip("\n"), tool_calls=())


def _as_user(message: Message) -> Message:
    head = f"The tool {message.name} answered:" if message.name else "The tool answered:"
    return Message("user", f"{head}\n{message.text}")


def _fold_system(messages: list[Message]) -> list[Message]:
    text = "\n\n".join(message.text for message in messages if message.role == "system")
    rest = [message for message in messages if message.role != "system"]
    if not text:
        return rest
    if rest and rest[0].role == "user":
        return [replace(rest[0], content=f"{text}\n\n{rest[0].text}"), *rest[1:]]
    return [Message("user", text), *rest]


def _merge(messages: list[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        same = out and out[-1].role == message.role and message.role in ("system", "user")
        if same:
            out[-1] = replace(out[-1], content=f"{out[-1].text}\n\n{message.text}")
        else:
            out.append(message)
    return out
