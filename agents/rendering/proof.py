"""What a chat template does, found out by probes when the model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from envhub.agents.rendering.adapt import Adaptation
from envhub.errors import UserError
from envhub.messages import Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from envhub.agents.rendering.chat_template import ChatTemplateRenderer


@dataclass(frozen=True, slots=True)
class TemplateProof:
    """The result of the probes.

    `end_of_turn` is the text of the token that ends an assistant's turn and `end_of_turn_id` its id (None where the
    template has none). `keeps_prefix` says that what follows a turn does not depend on what came before it, so that a
    short synthetic conversation may stand for the history; `failed` names the probes for which it does. `keeps_reasoning`
    says whether reasoning of earlier turns stays when a user speaks again.
    """

    end_of_turn: str = ""
    end_of_turn_id: int | None = None
    keeps_prefix: bool = False
    keeps_reasoning: bool = False
    failed: tuple[str, ...] = ()
    adaptation: Adaptation = field(default_factory=Adaptation)

    def __str__(self) -> str:
        kept = "keeps prefixes" if self.keeps_prefix else f"forks ({', '.join(self.failed) or 'no end of turn'})"
        reasoning = "keeps" if self.keeps_reasoning else "strips"
        rules = f"; rules: {', '.join(self.adaptation.names)}" if self.adaptation.names else ""
        return f"{kept}; {reasoning} earlier reasoning; a turn ends with {self.end_of_turn!r}{rules}"


_TOOL = ToolSpec("probe_tool", "A probe.", {"type": "object", "properties": {"x": {"type": "integer"}}})
_CALL = ToolCall("abcdefghi", "probe_tool", {"x": 7})
_USER, _SAID = Message("user", "first probe"), Message("assistant", "said probe")


def prove(renderer: ChatTemplateRenderer) -> TemplateProof:
    """Probe the renderer's template. Raises UserError when it cannot render a plain conversation."""
    renderer.text([_USER])
    adaptation = _adaptation(renderer)
    renderer._adaptation = adaptation
    end, end_id = _end_of_turn(renderer)
    proof = TemplateProof(end, end_id, adaptation=adaptation)
    if end_id is None:
        return proof
    renderer.proof = proof
    failed = tuple(name for name, probe in PROBES.items() if not _agrees(renderer, *probe))
    return replace(proof, keeps_prefix=not failed, failed=failed, keeps_reasoning=_keeps_reasoning(renderer))


def _renders(render: Callable[[], str], *expected: str) -> bool:
    """Whether rendering works and shows all expected texts."""
    try:
        text = render()
    except UserError:
        return False
    return all(item in text for item in expected)


def _adaptation(renderer: ChatTemplateRenderer) -> Adaptation:
    """Which rules the template needs; each probe runs under the rules found before it."""
    system = Message("system", "system probe")
    answer = Message("tool", "tool probe", tool_call_id=_CALL.id, name=_CALL.name)
    called = Message("assistant", "", tool_calls=(_CALL,))
    rules = Adaptation()
    if not _renders(lambda: renderer.text([system, _USER, _SAID, _USER]), "system probe"):
        rules = replace(rules, fold_system=True)
    renderer._adaptation = rules
    calls = ("probe_tool", "tool probe")
    conversation = [_USER, called, answer]
    if not _renders(lambda: renderer.text([_USER], [_TOOL]), "probe_tool"):
        rules = replace(rules, tools_as_text=True)
    renderer._adaptation = rules
    if not _renders(lambda: renderer.text(conversation, [_TOOL]), *calls):
        rules = replace(rules, tools_as_text=True, tool_as_user=True)
    renderer._adaptation = rules
    second = Message("user", "second probe")
    if not _renders(lambda: renderer.text([_USER, second, _SAID, _USER, second]), "first probe", "second probe"):
        rules = replace(rules, merge_same_role=True)
    return rules


def _end_of_turn(renderer: ChatTemplateRenderer) -> tuple[str, int | None]:
    """The special token that follows the assistant's text."""
    whole = renderer.text([_USER, _SAID, _USER])
    following = whole.partition(_SAID.text)[2]
    found = [(following.index(s), -len(s), s) for s in renderer._specials if s in following]
    if not found:
        return "", None
    at, _, end = min(found)
    ids = renderer.tokenizer.encode(end, add_special_tokens=False)
    if following[:at].strip() or len(ids) != 1:
        return "", None
    return end, ids[0]


PROBES: dict[str, tuple[list[Message], list[Message], list[ToolSpec]]] = {
    "second turn": ([_USER, _SAID], [Message("user", "next")], []),
    "fourth turn": ([_USER, _SAID] * 3, [Message("user", "next")], []),
    "system message": ([Message("system", "be brief"), _USER, _SAID], [Message("user", "next")], []),
    "several turns after a system message": (
        [Message("system", "be brief"), *[_USER, _SAID] * 2],
        [Message("user", "next")],
        [],
    ),
    "two user messages": ([_USER, _SAID], [Message("user", "next"), Message("user", "more")], []),
    "white space": (
        [Message("user", "  x \n"), Message("assistant", "  y\n\n"), _USER, Message("assistant", "\n z ")],
        [Message("user", "\n next  ")],
        [],
    ),
    "empty text": ([_USER, Message("assistant", "")], [Message("user", "next")], []),
    "no new message": ([_USER, _SAID], [], []),
    "tools on offer": ([_USER, _SAID], [Message("user", "next")], [_TOOL]),
    "a tool's answer": (
        [_USER, Message("assistant", "", tool_calls=(_CALL,))],
        [Message("tool", "12", tool_call_id=_CALL.id, name="probe_tool")],
        [_TOOL],
    ),
    "a second tool's answer": (
        [
            _USER,
            Message("assistant", "", tool_calls=(_CALL,)),
            Message("tool", "12", tool_call_id=_CALL.id, name="probe_tool"),
            Message("assistant", "", tool_calls=(_CALL,)),
        ],
        [Message("tool", "13", tool_call_id=_CALL.id, name="probe_tool")],
        [_TOOL],
    ),
}


def _agrees(
    renderer: ChatTemplateRenderer, history: Sequence[Message], new: Sequence[Message], tools: Sequence[ToolSpec]
) -> bool:
    """Whether the text after the turn is the same from the whole history and from a synthetic one."""
    short = [Message("user", "a"), Message("assistant", "b", tool_calls=history[-1].tool_calls)]
    try:
        whole = renderer.following(history, new, tools)
        return whole is not None and whole == renderer.following(short, new, tools)
    except UserError:
        return False


def _keeps_reasoning(renderer: ChatTemplateRenderer) -> bool:
    thought = Message("assistant", "said probe", reasoning="thought probe")
    try:
        return renderer.following([_USER, thought], [_USER], []) is not None
    except UserError:
        return False
