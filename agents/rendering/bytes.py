"""A byte-level renderer without a model: for scripted engines, so that they go the whole way of the tokens."""

import functools
import json
from collections.abc import Sequence

from envhub.agents.rendering.base import Continuation, Renderer
from envhub.messages import Message, ToolSpec

BEGIN = 256
END = 257
NEWLINE = 10


class ByteRenderer(Renderer):
    """ChatML over bytes: ids 0 to 255 are UTF-8 bytes, 256 begins a message and 257 ends it.

    Lone surrogates are kept. No text of a message can forge the two special ids.
    """

    name = "bytes"
    chat_template = "bytes"
    stop_token_ids = (END,)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        ids: list[int] = []
        if tools:
            text = "\n".join(json.dumps(tool.to_openai()) for tool in tools)
            ids.extend(_message("tools", text))
        for message in messages:
            ids.extend(_message(message.role, _text(message)))
        ids.extend(_OPENING)
        return ids

    def continue_from(
        self,
        history: Sequence[Message],
        sampled_ids: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
    ) -> Continuation:
        closing = (NEWLINE,) if sampled_ids and sampled_ids[-1] == END else (END, NEWLINE)
        body = [id for message in new for id in _message(message.role, _text(message))]
        return Continuation((*closing, *body, *_OPENING))

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of sampled text, without the id that ends a turn."""
        return tuple(text.encode("utf-8", "surrogatepass"))

    def decode(self, token_ids: Sequence[int]) -> str:
        data = bytes(id for id in token_ids if id < BEGIN)
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return data.decode("utf-8", "replace")


def _text(message: Message) -> str:
    """What the model is shown of a message: reasoning, text, calls; images by their number of bytes."""
    parts = [f"<think>{message.reasoning}</think>"] if message.reasoning is not None else []
    parts.append(message.text)
    parts += [f"<image {len(image.data)}>" for image in message.images]
    for call in message.tool_calls:
        arguments = call.raw if call.arguments is None else json.dumps(dict(call.arguments))
        parts.append(f'<tool_call>{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}</tool_call>')
    return "".join(parts)


@functools.lru_cache(maxsize=4096)
def _message(role: str, text: str) -> tuple[int, ...]:
    return (BEGIN, *role.encode(), NEWLINE, *text.encode("utf-8", "surrogatepass"), END, NEWLINE)


_OPENING = (BEGIN, *b"assistant\n")
