"""Answers that no task can want: nothing may raise on them, hang on them or pay for them."""

from envhub.messages import Action, Observation, ToolCall

_UNKNOWN_TOOL = "no_such_tool"


def junk_actions(opening: Observation) -> dict[str, Action]:
    """Junk by a name for reports; the prompt and the tool names are those of `opening`."""
    texts = {
        "an empty answer": "",
        "white space": " \n\t\r\n ",
        "200 kB of one letter": "a" * 200_000,
        "200 kB of words": "lorem ipsum " * 16_667,
        "'nan'": "nan",
        "'1e309'": "1e309",
        "'-inf'": "-inf",
        "control characters": "\x00\x01\x07\x08\x1b[2J\x1b]0;x\x07\x7f\x9b",
        "a lone surrogate": "\ud800 \udfff",
        "deeply nested brackets": "[" * 5_000 + "]" * 5_000,
        "deeply nested braces": '{"a":' * 5_000 + "1" + "}" * 5_000,
        "an unclosed code block": "```python\n",
        "the prompt itself": opening.text,
    }
    tool = opening.tools[0].name if opening.tools else _UNKNOWN_TOOL
    calls = {
        "a malformed tool call": ToolCall("call_0", tool, None, '{"broken": ', "arguments are not JSON"),
        "a call of an unknown tool": ToolCall("call_0", _UNKNOWN_TOOL, {}, "{}"),
        "a tool call with unknown arguments": ToolCall("call_0", tool, {"no_such_argument": None}, "{}"),
    }
    return {
        **{name: Action(text) for name, text in texts.items()},
        **{name: Action("", tool_calls=(call,)) for name, call in calls.items()},
        "text that could not be parsed": Action("<tool_call>{", parse_error="the tool call is not closed"),
    }


def is_right(junk: Action, oracle: Action | None) -> bool:
    """Whether the environment's own oracle says the same: then it is no junk here."""
    if oracle is None:
        return False
    return junk.text.strip() == oracle.text.strip() and junk.tool_calls == oracle.tool_calls
