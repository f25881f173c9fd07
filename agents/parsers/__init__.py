"""Parsers split sampled text into content, reasoning and tool calls."""

from envhub.agents.parsers.base import Parsed, Parser
from envhub.agents.parsers.hermes import HermesParser
from envhub.agents.parsers.llama3 import Llama3Parser
from envhub.agents.parsers.mistral import MistralParser
from envhub.agents.parsers.plain import PlainParser

__all__ = [
    "HermesParser",
    "Llama3Parser",
    "MistralParser",
    "Parsed",
    "Parser",
    "PlainParser",
    "choose_parser",
    "get_parser",
]


def choose_parser(chat_template: str) -> Parser:
    """The parser for the format that a chat template asks its model to write."""
    if "[TOOL_CALLS]" in chat_template:
        return MistralParser()
    if "<|python_tag|>" in chat_template or "<|start_header_id|>" in chat_template:
        return Llama3Parser()
    return HermesParser()


def get_parser(name: str) -> Parser:
    """The parser of a name, bundled or published by a plugin. Raises UserError for an unknown one."""
    from envhub import plugins

    made = plugins.load("envhub.parsers", name)
    parser: Parser = made() if isinstance(made, type) else made
    return parser
