"""The contract of a parser: sampled text to content, reasoning and tool calls."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from envhub.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed turn. `error` says why what looks like a tool call could not be read; it is then left in `text`."""

    text: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    error: str | None = None


class Parser(ABC):
    """Reads one model family's format. Never raises on any text."""

    name: str = "parser"

    @abstractmethod
    def parse(self, text: str) -> Parsed:
        """Split sampled text into content, reasoning and tool calls."""
