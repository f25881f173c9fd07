"""Calls as a bare JSON object `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>`: Llama 3."""

import json

from envhub.agents.parsers.base import Parsed, Parser
from envhub.agents.parsers.reading import call_of, read_call, split_reasoning

_TAG = "<|python_tag|>"


class Llama3Parser(Parser):
    """Reads a text that consists of calls; several are separated by `;`. JSON that names no call is an answer."""

    name = "llama3"

    def parse(self, text: str) -> Parsed:
        reasoning, rest = split_reasoning(text)
        before, tagged, after = rest.partition(_TAG)
        body = (after if tagged else rest).strip()
        if not body.startswith("{"):
            error = "no JSON object follows <|python_tag|>" if tagged else None
            return Parsed(rest, reasoning, (), error)
        values = _objects(body)
        if values is None:
            if tagged:
                return Parsed(before.strip(), reasoning, (read_call(body, 0),))
            looks = '"name"' in body and ('"parameters"' in body or '"arguments"' in body)
            return Parsed(rest, reasoning, (), "a call is not JSON" if looks else None)
        if not tagged and not all(
            isinstance(v, dict) and "name" in v and {"parameters", "arguments"} & v.keys() for v in values
        ):
            return Parsed(rest, reasoning)
        calls = tuple(call_of(value, json.dumps(value), f"call_{i}") for i, value in enumerate(values))
        return Parsed(before.strip() if tagged else "", reasoning, calls)


def _objects(body: str) -> list[object] | None:
    """The JSON values of a text that holds nothing else, separated by `;` or white space."""
    decoder, values = json.JSONDecoder(), []
    while body:
        try:
            value, end = decoder.raw_decode(body)
        except (ValueError, RecursionError):
            return None
        values.append(value)
        body = body[end:].lstrip().removeprefix(";").lstrip()
    return values
