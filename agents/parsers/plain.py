"""Text and reasoning, no tool calls."""

from envhub.agents.parsers.base import Parsed, Parser
from envhub.agents.parsers.reading import split_reasoning


class PlainParser(Parser):
    """Takes reasoning out of `<think>…</think>`; everything else is text."""

    name = "plain"

    def parse(self, text: str) -> Parsed:
        reasoning, rest = split_reasoning(text)
        return Parsed(rest, reasoning)
