"""Calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen, SmolLM and others."""

import re

from envhub.agents.parsers.base import Parsed, Parser
from envhub.agents.parsers.reading import read_call, split_reasoning

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)


class HermesParser(Parser):
    """Reads every closed call; one that is never closed stays in the text as an error."""

    name = "hermes"

    def parse(self, text: str) -> Parsed:
        reasoning, rest = split_reasoning(text)
        calls = tuple(read_call(raw.strip(), position) for position, raw in enumerate(_CALL.findall(rest)))
        content = _CALL.sub("", rest)
        error = f"a {_OPEN} is never closed" if _OPEN in content else None
        return Parsed(content.strip() if calls else content, reasoning, calls, error)
