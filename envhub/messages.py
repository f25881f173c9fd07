"""Messages, observations and actions: what an environment and a model say to each other.

All are frozen and compare by value. `to_dict`/`from_dict` give the JSON form that records and servers use.
"""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from envhub.guard import require, require_all, shown

if TYPE_CHECKING:
    from PIL.Image import Image

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message's content."""

    text: str

    def __post_init__(self) -> None:
        require(self.text, str, "a text part's text")


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a message's content, kept as encoded bytes so that it is immutable and compares by value."""

    data: bytes = field(repr=False)
    media_type: str = "image/png"

    def __post_init__(self) -> None:
        require(self.data, bytes, "an image's data")
        require(self.media_type, str, "an image's media type")

    @classmethod
    def from_pil(cls, image: "Image") -> "ImagePart":
        """Encode a PIL image as PNG (lossless, so replays are exact)."""
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        return cls(buffer.getvalue())

    def to_pil(self) -> "Image":
        """Decode to a PIL image."""
        from PIL import Image

        return Image.open(io.BytesIO(self.data))


Part: TypeAlias = TextPart | ImagePart
Content: TypeAlias = str | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool as the model wrote it.

    `arguments` is None when the model's text could not be parsed as a JSON object; `raw` always holds the text as
    written and `error` says what was wrong with it. A malformed call is answered to the model, it is not a fault.

    Raises TypeError for values of other types, ValueError where there are both arguments and an error, or neither.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    raw: str = ""
    error: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "name", "raw"):
            require(getattr(self, name), str, f"a tool call's {name}")
        require(self.arguments, (Mapping, NoneType), "a tool call's arguments")
        require(self.error, (str, NoneType), "a tool call's error")
        if (self.arguments is None) != (self.error is not None):
            raise ValueError("a tool call has either arguments or an error that says what is wrong with them")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool on offer: its name, what it does, and the JSON schema of its parameters.

    Raises TypeError for values of other types.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        require(self.name, str, "a tool's name")
        require(self.description, str, "a tool's description")
        require(self.parameters, Mapping, "a tool's parameters")

    def to_openai(self) -> dict[str, Any]:
        """The form that chat templates and OpenAI-compatible endpoints take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @classmethod
    def from_openai(cls, value: Mapping[str, Any]) -> "ToolSpec":
        """Inverse of `to_openai`; a description and parameters may be left out or null."""
        function = value["function"]
        description, parameters = function.get("description"), function.get("parameters")
        return cls(
            function["name"],
            "" if description is None else description,
            {} if parameters is None else parameters,
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Raises ValueError for another role, TypeError for parts of other types."""

    role: Role
    content: Content = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"a message's role is one of {', '.join(ROLES)}, not {shown(self.role)}")
        if not isinstance(self.content, str):
            require_all(self.content, (TextPart, ImagePart), "a message's content is a str or")
        require_all(self.tool_calls, ToolCall, "a message's tool calls are")
        for name in ("tool_call_id", "name", "reasoning"):
            require(getattr(self, name), (str, NoneType), f"a message's {name}")

    @property
    def text(self) -> str:
        """The message's text without its images."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The message's images in order."""
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, ImagePart))

    def to_dict(self) -> dict[str, Any]:
        """JSON form; images become base64 data URLs, as in the OpenAI chat format."""
        out: dict[str, Any] = {"role": self.role, "content": _content_to_json(self.content)}
        if self.tool_calls:
            out["tool_calls"] = [_call_to_json(call) for call in self.tool_calls]
        for key in ("tool_call_id", "name", "reasoning"):
            value = getattr(self, key)
            if value is not None:
                out[key] = value
        return out

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Message":
        """Inverse of `to_dict`; also takes messages in the OpenAI chat format.

        Raises ValueError for an unknown role or content part.
        """
        calls = tuple(_call_from_json(call, position) for position, call in enumerate(value.get("tool_calls") or ()))
        return cls(
            role=value["role"],
            content=_content_from_json(value.get("content")),
            tool_calls=calls,
            tool_call_id=value.get("tool_call_id"),
            name=value.get("name"),
            reasoning=value.get("reasoning") or value.get("reasoning_content"),
        )


def system(content: "MessageContent") -> Message:
    """A system message."""
    return Message("system", as_content(content))


def user(content: "MessageContent") -> Message:
    """A user message."""
    return Message("user", as_content(content))


def assistant(content: "MessageContent") -> Message:
    """An assistant message."""
    return Message("assistant", as_content(content))


MessageContent: TypeAlias = "str | Part | Image | Sequence[str | Part | Image]"


def as_content(value: Any) -> Content:
    """Text, an image, or a sequence of both, as message content.

    Raises TypeError for anything else.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return tuple(_as_part(item) for item in value)
    return (_as_part(value),)


def _as_part(value: Any) -> Part:
    if isinstance(value, TextPart | ImagePart):
        return value
    if isinstance(value, str):
        return TextPart(value)
    if hasattr(value, "save") and hasattr(value, "mode"):
        return ImagePart.from_pil(value)
    raise TypeError(f"message content is text, a PIL image, or a sequence of both, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment appends to the conversation: messages, and the tools on offer from now on.

    `tools` is None where the tools on offer stay as they were. Raises TypeError for parts of other types.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] | None = None

    def __post_init__(self) -> None:
        require_all(self.messages, Message, "an observation's messages are")
        if self.tools is not None:
            require_all(self.tools, ToolSpec, "an observation's tools are")

    @classmethod
    def of(cls, value: "ObservationLike") -> "Observation":
        """Make an observation from what authors may return: a str (a user message), a message, or a sequence of them.

        Raises TypeError for anything else.
        """
        if isinstance(value, Observation):
            return value
        if isinstance(value, str):
            return cls((Message("user", value),))
        if isinstance(value, Message):
            return cls((value,))
        if isinstance(value, list | tuple) and all(isinstance(item, Message) for item in value):
            return cls(tuple(value))
        raise TypeError(
            f"an observation is a str, a Message, a sequence of Messages or an Observation, not {shown(value)}"
        )

    @property
    def text(self) -> str:
        """The text of all messages, joined by newlines."""
        return "\n".join(message.text for message in self.messages)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        out: dict[str, Any] = {"messages": [message.to_dict() for message in self.messages]}
        if self.tools is not None:
            out["tools"] = [tool.to_openai() for tool in self.tools]
        return out

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Observation":
        """Inverse of `to_dict`."""
        tools = value.get("tools")
        return cls(
            tuple(Message.from_dict(message) for message in value["messages"]),
            None if tools is None else tuple(ToolSpec.from_openai(tool) for tool in tools),
        )


ObservationLike: TypeAlias = Observation | Message | str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class Action:
    """What the model did in one turn: text, parsed tool calls, reasoning, and the token ids it was sampled as.

    `token_ids` is empty where the engine gives none (an OpenAI-compatible endpoint, a person, a script).
    `finish_reason` is the engine's: `"stop"`, `"length"` or None. `parse_error` says why the text could not be parsed.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    parse_error: str | None = None

    def __post_init__(self) -> None:
        require(self.text, str, "an action's text")
        require_all(self.tool_calls, ToolCall, "an action's tool calls are")
        for name in ("reasoning", "finish_reason", "parse_error"):
            require(getattr(self, name), (str, NoneType), f"an action's {name}")

    @classmethod
    def of(cls, value: "ActionLike") -> "Action":
        """An action from a bare str, or the action itself. Raises TypeError for anything else."""
        if isinstance(value, Action):
            return value
        if isinstance(value, str):
            return cls(value)
        raise TypeError(f"an action is a str or an Action, not {type(value).__name__}")

    @property
    def message(self) -> Message:
        """The assistant message that this action appends to the conversation."""
        return Message("assistant", self.text, tool_calls=self.tool_calls, reasoning=self.reasoning)

    def with_text(self, text: str) -> "Action":
        """The same action with other text."""
        return replace(self, text=text)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, without the token ids (the trajectory holds these)."""
        out: dict[str, Any] = {"text": self.text}
        if self.tool_calls:
            out["tool_calls"] = [_call_to_json(call) for call in self.tool_calls]
        for key in ("reasoning", "finish_reason", "parse_error"):
            value = getattr(self, key)
            if value is not None:
                out[key] = value
        return out

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Action":
        """Inverse of `to_dict`."""
        return cls(
            text=value["text"],
            tool_calls=tuple(_call_from_json(call, i) for i, call in enumerate(value.get("tool_calls") or ())),
            reasoning=value.get("reasoning"),
            finish_reason=value.get("finish_reason"),
            parse_error=value.get("parse_error"),
        )


ActionLike: TypeAlias = Action | str


def _content_to_json(content: Content) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    out: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, TextPart):
            out.append({"type": "text", "text": part.text})
        else:
            url = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode('ascii')}"
            out.append({"type": "image_url", "image_url": {"url": url}})
    return out


def _content_from_json(content: Any) -> Content:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[Part] = []
    for part in content:
        kind = part.get("type")
        if kind == "text":
            parts.append(TextPart(part["text"]))
        elif kind == "image_url":
            header, separator, payload = part["image_url"]["url"].partition(";base64,")
            if not separator or not header.startswith("data:"):
                raise ValueError("an image is given as a base64 data URL; links are not fetched")
            parts.append(ImagePart(base64.b64decode(payload), header.removeprefix("data:")))
        else:
            raise ValueError(f"a content part's type is 'text' or 'image_url', not {kind!r}")
    return tuple(parts)


def _call_to_json(call: ToolCall) -> dict[str, Any]:
    arguments = call.raw if call.arguments is None else json.dumps(dict(call.arguments), ensure_ascii=False)
    out: dict[str, Any] = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
    if call.raw != arguments:
        out["raw"] = call.raw
    if call.error is not None:
        out["error"] = call.error
    return out


def _call_from_json(value: Mapping[str, Any], position: int) -> ToolCall:
    function = value["function"]
    given = function.get("arguments")
    raw = value.get("raw", given if isinstance(given, str) else "")
    error = value.get("error")
    arguments: Any = given
    if error is not None:
        arguments = None
    elif isinstance(given, str):
        try:
            arguments = json.loads(given)
        except ValueError as problem:
            arguments, error = None, f"arguments are not JSON: {problem}"
    if error is None and not isinstance(arguments, Mapping):
        arguments, error = None, "arguments are not a JSON object"
    return ToolCall(value.get("id") or f"call_{position}", function["name"], arguments, raw, error)
