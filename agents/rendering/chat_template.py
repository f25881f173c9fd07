"""Rendering by a model's own chat template.

What follows a sampled turn is rendered from the template's text after that turn's end-of-turn token; what came before it
is never touched. `proof.py` decides at load time whether a short synthetic conversation may stand for the real history.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envhub.agents.rendering.adapt import Adaptation, adapt
from envhub.agents.rendering.base import Continuation, Renderer, TemplateError
from envhub.agents.rendering.proof import TemplateProof, prove
from envhub.errors import UserError
from envhub.messages import Message, ToolSpec

STRIPS_REASONING = "template_strips_reasoning"
REWRITES_HISTORY = "template_rewrites_history"
NO_END_OF_TURN = "template_has_no_end_of_turn"

_KEPT, _KEPT_CHARACTERS = 32, 20_000
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
_MARKER = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What a rendering is kept under: tools, which hold dicts, count by their JSON."""

    messages: tuple[Message, ...]
    offered: str
    tools: tuple[ToolSpec, ...] = field(compare=False)

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> "_Beginning | None":
        """None for what is too long to keep, and for what cannot be told apart by a hash."""
        if sum(map(_characters, messages)) > _KEPT_CHARACTERS:
            return None
        try:
            # In the order of their keys: templates write it.
            made = cls(tuple(messages), json.dumps([tool.to_openai() for tool in tools]), tuple(tools))
            hash(made)
        except (TypeError, ValueError, RecursionError):  # the arguments of calls, tools that are no JSON
            return None
        return made


class ChatTemplateRenderer(Renderer):
    """Renders with a Hugging Face tokenizer that has a chat template.

    `proof` says what the template was found to do: whether it keeps prefixes, how a turn ends, and which rules stand in
    for features that it lacks (a system role, a tool role, tools, two messages of one role in a row). Text inside of
    messages cannot forge the model's special tokens: it is tokenised as ordinary text.

    Raises UserError when the tokenizer has no chat template, or one that cannot render a plain conversation.
    """

    name = "chat_template"

    def __init__(self, tokenizer: Any, name: str = "") -> None:
        self.tokenizer = tokenizer
        self.model = name or str(getattr(tokenizer, "name_or_path", "") or "the model")
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"{self.model} has no chat template; add a chat_template.jinja to its folder, or use an instruct model"
            )
        template = tokenizer.chat_template
        self.chat_template: str = template if isinstance(template, str) else "\n".join(dict(template).values())
        self._specials = _special_strings(tokenizer)
        self._pattern = re.compile("|".join(map(re.escape, (*self._specials, _OPEN))))
        self._adaptation = Adaptation()
        self.proof: TemplateProof = prove(self)
        self._adaptation = self.proof.adaptation
        ids = [] if self.proof.end_of_turn_id is None else [self.proof.end_of_turn_id]
        eos = tokenizer.eos_token_id
        self.stop_token_ids = tuple(dict.fromkeys([*ids, *([] if eos is None else [eos])]))
        # The rollouts of a group begin with the same messages.
        self._kept = functools.lru_cache(maxsize=_KEPT)(
            lambda beginning: tuple(self.encode(self.text(beginning.messages, beginning.tools)))
        )

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        beginning = _Beginning.of(messages, tools)
        return self.encode(self.text(messages, tools)) if beginning is None else list(self._kept(beginning))

    def continue_from(
        self,
        history: Sequence[Message],
        sampled_ids: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
    ) -> Continuation:
        if self.proof.end_of_turn_id is None:
            return Continuation(None, NO_END_OF_TURN)
        if self.proof.keeps_prefix and all(message.reasoning is None for message in history):
            said = Message("assistant", "b", tool_calls=history[-1].tool_calls)
            history = (Message("user", "a"), said)
        following = self.following(history, new, tools)
        if following is None:
            stripped = any(message.reasoning for message in history)
            return Continuation(None, STRIPS_REASONING if stripped else REWRITES_HISTORY)
        ids = self.encode(self.proof.end_of_turn + following)
        closed = bool(sampled_ids) and sampled_ids[-1] in self.stop_token_ids
        return Continuation(tuple(ids[1:] if closed else ids))

    def following(self, history: Sequence[Message], new: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        """The template's text after the end-of-turn token of the last message of `history`.

        None where the template, now that `new` follows, renders what came before in another way.
        """
        before = self.text(history[:-1], tools)
        whole = self.text([*history, *new], tools)
        if not whole.startswith(before):
            return None
        said, separator, following = whole[len(before) :].partition(self.proof.end_of_turn)
        reasoning = history[-1].reasoning
        if not separator or (reasoning and self.escape(reasoning.strip()) not in said):
            return None
        return following

    def decode(self, token_ids: Sequence[int]) -> str:
        ids = list(token_ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, opening: bool = True) -> str:
        """The template's text, with markers where a message's text looks like a special token."""
        messages, tools = adapt(messages, tools, self._adaptation)
        conversation = [self._to_template(message) for message in messages]
        offered = [self._escape_all(tool.to_openai()) for tool in tools] or None
        try:
            rendered: str = self.tokenizer.apply_chat_template(
                conversation, tools=offered, tokenize=False, add_generation_prompt=opening
            )
        except Exception as problem:
            raise TemplateError(f"the chat template of {self.model} refuses the conversation: {problem}") from problem
        return rendered

    def encode(self, text: str) -> list[int]:
        """Tokenise template text; markers become the ordinary tokens of the text that they stand for.

        Lone surrogates, which no tokenizer takes, become question marks.
        """
        text = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = []
        for position, piece in enumerate(_MARKER.split(text)):
            if position % 2:
                literal = (*self._specials, _OPEN)[int(piece)]
                ids.extend(self.tokenizer.encode(literal, add_special_tokens=False, split_special_tokens=True))
            elif piece:
                ids.extend(self.tokenizer.encode(piece, add_special_tokens=False))
        return ids

    def escape(self, text: str) -> str:
        """The text with markers in place of special tokens' strings."""
        table = self._marker_of
        return self._pattern.sub(lambda match: table[match.group()], text)

    @functools.cached_property
    def _marker_of(self) -> dict[str, str]:
        return {special: f"{_OPEN}{i}{_CLOSE}" for i, special in enumerate((*self._specials, _OPEN))}

    def _escape_all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, Mapping):
            return {self._escape_all(key): self._escape_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._escape_all(item) for item in value]
        return value

    def _to_template(self, message: Message) -> dict[str, Any]:
        if message.images:
            raise UserError(f"{self.model} reads no images; use a vision-language model for this environment")
        out: dict[str, Any] = {"role": message.role, "content": self.escape(message.text)}
        if message.reasoning is not None:
            reasoning = self.escape(message.reasoning)
            if "reasoning_content" in self.chat_template:
                out["reasoning_content"] = reasoning
            else:
                out["content"] = f"<think>{reasoning}</think>{out['content']}"
        if message.tool_calls:
            out["tool_calls"] = [
                {
                    "type": "function",
                    "id": self.escape(call.id),
                    "function": {
                        "name": self.escape(call.name),
                        "arguments": self._escape_all(call.raw if call.arguments is None else dict(call.arguments)),
                    },
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            out["tool_call_id"] = self.escape(message.tool_call_id)
        if message.name is not None:
            out["name"] = self.escape(message.name)
        return out


def _characters(message: Message) -> int:
    return len(message.text) + len(message.reasoning or "") + sum(len(call.raw) for call in message.tool_calls)


def _special_strings(tokenizer: Any) -> tuple[str, ...]:
    """Every string that the tokenizer would read as one special or added token, the longest first."""
    added = getattr(tokenizer, "added_tokens_encoder", {}) or {}
    strings = {*map(str, added), *map(str, tokenizer.all_special_tokens)}
    return tuple(sorted((string for string in strings if string), key=lambda string: (-len(string), string)))


def load_renderer(path: str | Path) -> ChatTemplateRenderer:
    """The renderer of the model in a folder. Raises UserError where its tokenizer or its template cannot be used."""
    from envhub.agents.engines.loading import load_tokenizer

    return ChatTemplateRenderer(load_tokenizer(path), Path(path).name)
