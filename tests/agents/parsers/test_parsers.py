import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envhub.agents.parsers import (
    HermesParser,
    Llama3Parser,
    MistralParser,
    Parsed,
    Parser,
    PlainParser,
    choose_parser,
)

PARSERS = (HermesParser(), Llama3Parser(), MistralParser(), PlainParser())
WITH_CALLS = PARSERS[:3]

names = st.text(min_size=1).filter(lambda name: "<" not in name and "[" not in name)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(st.tuples(names, st.dictionaries(st.text(), values, max_size=3)), min_size=1, max_size=4)
scraps = st.sampled_from(
    [
        "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "{", "}", "[", "]", ";",
        '{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"x": 1}}', '{"name": 3}', '"name"',
        '"parameters"', "\n", " ", "null", "\ud800", "1e999", "NaN",
    ]
)  # fmt: skip


def _written(parser: Parser, made: list[tuple[str, dict]]) -> str:
    """Calls as the parser's model writes them."""
    if isinstance(parser, MistralParser):
        return "[TOOL_CALLS] " + json.dumps([{"name": name, "arguments": arguments} for name, arguments in made])
    if isinstance(parser, Llama3Parser):
        return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in made)
    entries = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in made)
    return "\n".join(f"<tool_call>\n{entry}\n</tool_call>" for entry in entries)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
@settings(max_examples=150)
@given(text=st.text() | st.lists(scraps | st.text(max_size=5), max_size=12).map("".join))
@example(text="<tool_call>" + "[" * 100_000 + "</tool_call>")
@example(text="[TOOL_CALLS]" + "[" * 100_000)
@example(text='{"a":' * 100_000)
@example(text='{"name": "f", "parameters": ' + "9" * 5000 + "}")
@example(text='<tool_call>{"name": "f", "arguments": "' + "[" * 100_000 + '"}</tool_call>')
def test_no_text_makes_a_parser_raise(parser: Parser, text: str) -> None:
    parsed = parser.parse(text)
    assert isinstance(parsed, Parsed)
    assert len({call.id for call in parsed.tool_calls}) == len(parsed.tool_calls)
    assert all((call.arguments is None) == (call.error is not None) for call in parsed.tool_calls)


@pytest.mark.parametrize("parser", WITH_CALLS, ids=lambda parser: parser.name)
@settings(max_examples=60)
@given(made=calls.filter(lambda made: not any("</" in json.dumps(arguments) for _, arguments in made)))
def test_what_is_written_in_the_models_format_is_read_back(parser: Parser, made) -> None:
    parsed = parser.parse(_written(parser, made))
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == made
    assert [call.id for call in parsed.tool_calls] == [f"call_{i}" for i in range(len(made))]
    assert (parsed.text, parsed.error, parsed.reasoning) == ("", None, None)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>\nso\n</think>\n\nyes", "so", "yes"),
        ("so\n</think>yes", "so", "yes"),
        ("  <think>so</think>yes", "so", "yes"),
        ("<think></think>yes", "", "yes"),
        ("<think>for ever", None, "<think>for ever"),
        ("say <think>x</think>", None, "say <think>x</think>"),
        (" yes\n", None, " yes\n"),
    ],
)
def test_reasoning_is_told_from_the_answer(parser: Parser, text: str, reasoning: str | None, rest: str) -> None:
    assert parser.parse(text) == Parsed(rest, reasoning)


def test_plain_text_has_no_calls() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert PlainParser().parse(text) == Parsed(text)


def test_hermes_keeps_the_text_around_its_calls() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    parsed = HermesParser().parse(f"<think>a</think>first\n{call}\n{call}")
    assert (parsed.text, parsed.reasoning, parsed.error) == ("first", "a", None)
    assert [(made.id, made.name, made.arguments) for made in parsed.tool_calls] == [
        ("call_0", "f", {"x": 1}),
        ("call_1", "f", {"x": 1}),
    ]


def test_a_hermes_call_that_is_never_closed_stays_in_the_text() -> None:
    text = 'go <tool_call>{"name": "f"'
    assert HermesParser().parse(text) == Parsed(text, error="a <tool_call> is never closed")


@pytest.mark.parametrize(
    ("raw", "name", "error"),
    [
        ("{f}", "", "not JSON"),
        ("[1]", "", "expected a JSON object, found list"),
        ('{"arguments": {}}', "", "it has no 'name'"),
        ('{"name": "", "arguments": {}}', "", "it has no 'name'"),
        ('{"name": "f", "arguments": [1]}', "f", "arguments are not a JSON object"),
        ('{"name": "f", "arguments": "{"}', "f", "arguments are not JSON"),
    ],
)
def test_a_malformed_call_keeps_its_text_and_says_why(raw: str, name: str, error: str) -> None:
    (call,) = HermesParser().parse(f"<tool_call>{raw}</tool_call>").tool_calls
    assert (call.name, call.arguments, call.raw) == (name, None, raw)
    assert error in (call.error or "")


@pytest.mark.parametrize(
    ("raw", "name", "error"),
    [
        ("[{f}]", "", "not JSON"),
        ("[1]", "", "expected a JSON object, found int"),
        ('[{"name": "f", "arguments": 1}]', "f", "arguments are not a JSON object"),
    ],
)
def test_a_malformed_mistral_call_says_why(raw: str, name: str, error: str) -> None:
    (call,) = MistralParser().parse(f"[TOOL_CALLS]{raw}").tool_calls
    assert (call.name, call.arguments) == (name, None)
    assert error in (call.error or "")


def test_arguments_encoded_twice_or_left_out_are_read() -> None:
    parser = HermesParser()
    (twice,) = parser.parse('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>').tool_calls
    (none,) = parser.parse('<tool_call>{"name": "f"}</tool_call>').tool_calls
    assert (twice.arguments, none.arguments) == ({"x": 1}, {})


@pytest.mark.parametrize(
    ("text", "content", "made", "error"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', "", ["f"], None),
        ('hm <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "hm", ["f", "g"], None),
        ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', [], None),
        ('{"answer": 4}', '{"answer": 4}', [], None),
        ('see {"name": "f", "parameters": {}}', 'see {"name": "f", "parameters": {}}', [], None),
        ('{"name": "f", "parameters": {', '{"name": "f", "parameters": {', [], "a call is not JSON"),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", [], "no JSON object follows <|python_tag|>"),
    ],
)
def test_llama3_tells_calls_from_answers_in_json(text: str, content: str, made: list[str], error: str | None) -> None:
    parsed = Llama3Parser().parse(text)
    assert (parsed.text, [call.name for call in parsed.tool_calls], parsed.error) == (content, made, error)


def test_a_tagged_llama3_call_that_is_not_json_is_a_malformed_call() -> None:
    (call,) = Llama3Parser().parse('<|python_tag|>{"name": f}').tool_calls
    assert (call.raw, call.arguments) == ('{"name": f}', None)
    assert (call.error or "").startswith("not JSON")


@pytest.mark.parametrize(
    ("text", "content", "made", "error"),
    [
        ("just text", "just text", [], None),
        ('first [TOOL_CALLS] [{"name": "f", "arguments": {}}]', "first", ["f"], None),
        ('[TOOL_CALLS]{"name": "f", "arguments": {}}', "", ["f"], None),
        ("[TOOL_CALLS] []", "[TOOL_CALLS] []", [], "an empty list of calls"),
        ("[TOOL_CALLS] [{", "", [""], None),
    ],
)
def test_mistral_reads_the_list_after_its_tag(text: str, content: str, made: list[str], error: str | None) -> None:
    parsed = MistralParser().parse(text)
    assert (parsed.text, [call.name for call in parsed.tool_calls], parsed.error) == (content, made, error)


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{{ '[TOOL_CALLS]' }}", MistralParser),
        ("<|start_header_id|>", Llama3Parser),
        ("<|python_tag|>", Llama3Parser),
        ("<|im_start|> <tool_call>", HermesParser),
        ("", HermesParser),
    ],
)
def test_the_parser_follows_from_the_template(template: str, parser: type[Parser]) -> None:
    assert type(choose_parser(template)) is parser
