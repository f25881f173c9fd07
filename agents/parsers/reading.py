"""What the parsers share: reasoning, and calls written as JSON."""

import json
from typing import Any

from envhub.messages import ToolCall

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Reasoning and the rest.

    Takes `<think>…</think>` at the head of the text, and text that begins inside of the reasoning because the template
    had opened it. Reasoning that is never closed is left in the text.
    """
    head, separator, rest = text.partition(THINK_CLOSE)
    if not separator:
        return None, text
    before, opened, inside = head.partition(THINK_OPEN)
    if opened and before.strip():
        return None, text
    return (inside if opened else head).strip("\n"), rest.lstrip("\n")


def read_call(raw: str, position: int) -> ToolCall:
    """A call written as `{"name": …, "arguments": {…}}` (or `parameters`); a malformed one keeps its text and its error.

    Arguments that were encoded as JSON twice are decoded twice.
    """
    identifier = f"call_{position}"
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as problem:
        return ToolCall(identifier, "", None, raw, f"not JSON: {problem}")
    return call_of(value, raw, identifier)


def call_of(value: Any, raw: str, identifier: str) -> ToolCall:
    """A call from a decoded JSON value."""
    if not isinstance(value, dict):
        return ToolCall(identifier, "", None, raw, f"expected a JSON object, found {type(value).__name__}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return ToolCall(identifier, "", None, raw, "it has no 'name'")
    arguments: Any = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as problem:
            return ToolCall(identifier, name, None, raw, f"arguments are not JSON: {problem}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolCall(identifier, name, None, raw, "arguments are not a JSON object")
    return ToolCall(identifier, name, arguments, raw)
