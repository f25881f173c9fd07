"""Calls as `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`: Mistral."""

import json

from envhub.agents.parsers.base import Parsed, Parser
from envhub.agents.parsers.reading import call_of, read_call, split_reasoning

_TAG = "[TOOL_CALLS]"


class MistralParser(Parser):
    """Reads the list of calls that follows the tag."""

    name = "mistral"

    def parse(self, text: str) -> Parsed:
        reasoning, rest = split_reasoning(text)
        before, tagged, after = rest.partition(_TAG)
        if not tagged:
            return Parsed(rest, reasoning)
        body = after.strip()
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            return Parsed(before.strip(), reasoning, (read_call(body, 0),))
        entries = values if isinstance(values, list) else [values]
        calls = tuple(call_of(value, json.dumps(value), f"call_{i}") for i, value in enumerate(entries))
        if not calls:
            return Parsed(rest, reasoning, (), "an empty list of calls")
        return Parsed(before.strip(), reasoning, calls)
