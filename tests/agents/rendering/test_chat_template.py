import pytest
from hypothesis import given, settings

from envhub import ImagePart, Message, ToolCall, ToolSpec
from envhub.agents.rendering import ChatTemplateRenderer, load_renderer
from envhub.errors import UserError
from envhub.messages import TextPart

from .conversations import TOOL, Conversation, conversations
from .templates import SPECIALS, TEMPLATES, renderer_of, tokenizer_with

STYLES = tuple(TEMPLATES)
PROPERTY = settings(max_examples=30)
USER, NEXT = Message("user", "hello"), Message("user", "next")


def _as_sampled(renderer: ChatTemplateRenderer, history: list[Message], said: Message, tools=()) -> list[int]:
    """The ids, ending with the end of the turn, that the template itself gives for what is said."""
    opening = renderer.render(history, tools)
    whole = renderer.render([*history, said], tools)
    assert whole[: len(opening)] == opening
    rest = whole[len(opening) :]
    return rest[: rest.index(renderer.proof.end_of_turn_id) + 1]


def _ids(renderer: ChatTemplateRenderer, text: str) -> list[int]:
    return renderer.tokenizer.encode(text, add_special_tokens=False)


def _plays_as_it_renders(renderer: ChatTemplateRenderer, conversation: Conversation) -> None:
    """Check that the record of an episode, made turn by turn, is the rendering of its whole conversation."""
    history, tools = list(conversation.opening), conversation.tools
    ids = renderer.render(history, tools)
    for said, new in conversation.rounds:
        sampled = _as_sampled(renderer, history, said, tools)
        history.append(said)
        following = renderer.continue_from(history, sampled, new, tools)
        assert following.token_ids is not None
        ids += [*sampled, *following.token_ids]
        history.extend(new)
    assert ids == renderer.render(history, tools)


def _specials(renderer: ChatTemplateRenderer, ids) -> list[int]:
    return [id for id in ids if id < len(SPECIALS)]


@pytest.mark.parametrize("style", STYLES)
def test_the_styles_keep_prefixes(style: str) -> None:
    proof = renderer_of(style).proof
    assert proof.keeps_prefix and not proof.failed
    assert proof.keeps_reasoning is (style != "qwen3")


@pytest.mark.parametrize(
    ("style", "rules"),
    [
        ("chatml", ()),
        ("llama3", ()),
        ("qwen3", ()),
        ("mistral", ("fold_system",)),
        ("bare", ("fold_system", "tools_as_text", "tool_as_user", "merge_same_role")),
    ],
)
def test_the_proof_names_the_rules_that_stand_in(style: str, rules: tuple[str, ...]) -> None:
    proof = renderer_of(style).proof
    assert proof.adaptation.names == rules
    assert all(rule in str(proof) for rule in rules)


@pytest.mark.parametrize("style", STYLES)
@PROPERTY
@given(conversation=conversations())
def test_turn_by_turn_rendering_is_the_whole_rendering(style: str, conversation: Conversation) -> None:
    _plays_as_it_renders(renderer_of(style), conversation)


@PROPERTY
@given(conversation=conversations(reasoning=True))
def test_qwen3_keeps_reasoning_in_a_loop_of_tools_and_forks_when_a_user_speaks(conversation: Conversation) -> None:
    renderer, tools = renderer_of("qwen3"), conversation.tools
    history = list(conversation.opening)
    ids = renderer.render(history, tools)
    for said, new in conversation.rounds:
        sampled = _as_sampled(renderer, history, said, tools)
        history.append(said)
        following = renderer.continue_from(history, sampled, new, tools)
        history.extend(new)
        if new[0].role == "user":
            assert (following.token_ids, following.cause) == (None, "template_strips_reasoning")
            ids = renderer.render(history, tools)
        else:
            assert following.token_ids is not None
            ids += [*sampled, *following.token_ids]
    assert ids == renderer.render(history, tools)


@pytest.mark.parametrize("style", ["chatml", "llama3", "mistral"])
@PROPERTY
@given(conversation=conversations(reasoning=True))
def test_a_template_that_knows_no_reasoning_keeps_it_as_text(style: str, conversation: Conversation) -> None:
    _plays_as_it_renders(renderer_of(style), conversation)


@pytest.mark.parametrize("style", STYLES)
def test_sampled_ids_are_never_tokenised_again(style: str) -> None:
    renderer = renderer_of(style)
    usual = _ids(renderer, "hello world")
    odd = [id for letter in "hello world" for id in _ids(renderer, letter)]
    assert odd != usual and renderer.decode(odd) == renderer.decode(usual) == "hello world"
    end = renderer.proof.end_of_turn_id
    history = [USER, Message("assistant", "hello world")]
    following = renderer.continue_from(history, [*odd, end], [NEXT])
    assert following == renderer.continue_from(history, [*usual, end], [NEXT])
    record = [*renderer.render([USER]), *usual, end, *following.token_ids]
    assert record == renderer.render([*history, NEXT])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", ["", "hel"])
def test_a_turn_that_was_cut_off_is_closed_first(style: str, text: str) -> None:
    renderer = renderer_of(style)
    end, sampled = renderer.proof.end_of_turn_id, _ids(renderer, text)
    history = [USER, Message("assistant", text)]
    closed = renderer.continue_from(history, [*sampled, end], [NEXT]).token_ids
    assert renderer.continue_from(history, sampled, [NEXT]).token_ids == (end, *closed)


@pytest.mark.parametrize("style", STYLES)
def test_a_turn_that_ended_goes_on_behind_its_end_whatever_is_said_in_it(style: str) -> None:
    renderer = renderer_of(style)
    for text in ("b", "a", "<|im_end|>", "</s>", "<|eot_id|>\n"):
        said = Message("assistant", text)
        sampled = _as_sampled(renderer, [USER], said)
        following = renderer.continue_from([USER, said], sampled, [NEXT]).token_ids
        assert [*renderer.render([USER]), *sampled, *following] == renderer.render([USER, said, NEXT])


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("style", STYLES)
def test_text_that_spells_a_special_token_stays_text(style: str, special: str) -> None:
    renderer = renderer_of(style)

    def talk(text: str) -> list[int]:
        call = ToolCall(f"id{text}", f"f{text}", {f"k{text}": f"v{text}", "deep": [{"x": text}]})
        tool = ToolSpec(f"f{text}", f"d{text}", {"type": "object", "properties": {f"p{text}": {"title": text}}})
        conversation = [
            Message("system", f"s{text}"),
            Message("user", f"u{text}v"),
            Message("assistant", f"a{text}", (call,), reasoning=f"r{text}"),
            Message("tool", f"t{text}", tool_call_id=f"id{text}", name=f"f{text}"),
        ]
        return renderer.render(conversation, [tool])

    ids = talk(special)
    assert _specials(renderer, ids) == _specials(renderer, talk("-"))
    assert f"u{special}v" in renderer.tokenizer.decode(ids)
    following = renderer.continue_from([USER, Message("assistant", "b")], [], [Message("user", special)])
    plain = renderer.continue_from([USER, Message("assistant", "b")], [], [Message("user", "-")])
    assert _specials(renderer, following.token_ids) == _specials(renderer, plain.token_ids)


@pytest.mark.parametrize("style", STYLES)
def test_no_text_can_forge_the_marks_that_keep_special_tokens_out(style: str) -> None:
    renderer = renderer_of(style)
    for text in ("\ue0f0", "\ue0f1", *(f"\ue0f0{i}\ue0f1" for i in range(len(SPECIALS) + 2)), "\ue0f099\ue0f1"):
        ids = renderer.render([Message("user", f"x{text}y")])
        assert f"x{text}y" in renderer.tokenizer.decode(ids)
        assert _specials(renderer, ids) == _specials(renderer, renderer.render([USER]))


def test_lone_surrogates_are_replaced() -> None:
    renderer = renderer_of("chatml")
    assert renderer.render([Message("user", "x\udcffy")]) == renderer.render([Message("user", "x?y")])


def test_decoding_drops_what_ends_the_turn_only() -> None:
    renderer = renderer_of("chatml")
    end = renderer.proof.end_of_turn_id
    inner = _ids(renderer, " é <|im_start|> . ,  x\n")
    assert renderer.decode([*inner, end]) == renderer.decode(inner) == " é <|im_start|> . ,  x\n"
    assert renderer.decode([end]) == renderer.decode([]) == ""
    assert renderer.stop_token_ids == (end,)


def test_a_malformed_call_is_rendered_as_it_was_written() -> None:
    renderer = renderer_of("chatml")
    call = ToolCall("c", "add", None, '{"a": <|im_end|>', "arguments are not JSON")
    ids = renderer.render([USER, Message("assistant", "", (call,))], [TOOL])
    assert "<|im_end|>" in renderer.tokenizer.decode(ids).rpartition('"arguments": ')[2]
    plain = ToolCall("c", "add", None, '{"a": -', "arguments are not JSON")
    expected = renderer.render([USER, Message("assistant", "", (plain,))], [TOOL])
    assert _specials(renderer, ids) == _specials(renderer, expected)


def test_a_template_that_rewrites_the_history_forks() -> None:
    counted = "{{- '<s>' ~ (messages | length) ~ '</s>' }}" + TEMPLATES["chatml"]
    renderer = ChatTemplateRenderer(tokenizer_with(counted), "counting")
    assert not renderer.proof.keeps_prefix and "second turn" in renderer.proof.failed
    assert str(renderer.proof).startswith("forks (second turn")
    history = [USER, Message("assistant", "b")]
    following = renderer.continue_from(history, [renderer.proof.end_of_turn_id], [NEXT])
    assert (following.token_ids, following.cause) == (None, "template_rewrites_history")


def test_a_template_without_an_end_of_turn_forks() -> None:
    bare = "{%- for message in messages %}{{- message.role + ': ' + message.content + '\\n' }}{%- endfor %}"
    renderer = ChatTemplateRenderer(tokenizer_with(bare), "endless")
    assert renderer.proof.end_of_turn_id is None and not renderer.proof.keeps_prefix
    following = renderer.continue_from([USER, Message("assistant", "b")], [1], [NEXT])
    assert (following.token_ids, following.cause) == (None, "template_has_no_end_of_turn")


def test_a_model_without_a_usable_template_is_refused() -> None:
    with pytest.raises(UserError, match=r"mute has no chat template; add a chat_template\.jinja"):
        ChatTemplateRenderer(tokenizer_with(None), "mute")
    with pytest.raises(UserError, match="template of strict refuses the conversation: never"):
        ChatTemplateRenderer(tokenizer_with("{{ raise_exception('never') }}"), "strict")


def test_images_are_refused_by_a_model_that_reads_text() -> None:
    picture = Message("user", (TextPart("look"), ImagePart(b"x")))
    with pytest.raises(UserError, match="chatml-probe reads no images; use a vision-language model"):
        renderer_of("chatml").render([picture])


def test_a_renderer_is_loaded_from_a_models_folder(tmp_path) -> None:
    tokenizer_with(TEMPLATES["qwen3"]).save_pretrained(tmp_path / "a-model")
    renderer = load_renderer(tmp_path / "a-model")
    assert renderer.model == "a-model"
    assert renderer.render([USER], [TOOL]) == renderer_of("qwen3").render([USER], [TOOL])
    with pytest.raises(UserError, match="nothing"):
        load_renderer(tmp_path / "nothing")


class Counting:
    """A tokenizer that counts how often its template is rendered."""

    def __init__(self) -> None:
        self.inner, self.count = tokenizer_with(TEMPLATES["chatml"]), 0

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def apply_chat_template(self, *given, **options) -> str:
        self.count += 1
        return self.inner.apply_chat_template(*given, **options)


def _renderings(renderer: ChatTemplateRenderer, *given) -> tuple[list[int], int]:
    before = renderer.tokenizer.count
    return renderer.render(*given), renderer.tokenizer.count - before


@pytest.fixture(scope="module")
def counting() -> ChatTemplateRenderer:
    return ChatTemplateRenderer(Counting(), "counted")


@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_what_is_rendered_again_is_equal_and_a_list_of_its_own(counting: ChatTemplateRenderer, tools) -> None:
    messages = [Message("user", f"again {len(tools)}")]
    first, count = _renderings(counting, messages, tools)
    assert count == 1
    first_as_it_was = list(first)
    first.append(7)
    again, count = _renderings(counting, list(messages), list(tools))
    assert (again, count) == (first_as_it_was, 0)
    again.clear()
    assert counting.render(messages, tools) == first_as_it_was


def test_tools_are_told_apart_by_all_that_a_template_writes(counting: ChatTemplateRenderer) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    offered = [ToolSpec("f", "d", dict(order)) for order in (parameters.items(), reversed(parameters.items()))]
    first, second = (counting.render([USER], [tool]) for tool in offered)
    fresh = renderer_of("chatml")
    assert first != second and [first, second] == [fresh.render([USER], [tool]) for tool in offered]
    parameters["properties"]["a"]["type"] = "integer"
    assert counting.render([USER], [offered[0]]) not in (first, second)


def test_a_long_conversation_is_not_kept(counting: ChatTemplateRenderer) -> None:
    for length, kept in ((10_000, True), (10_001, False)):
        messages = [Message("system", "x" * 10_000), Message("user", "y" * length)]
        first, _ = _renderings(counting, messages)
        assert _renderings(counting, messages) == (first, 0 if kept else 1)


def test_calls_with_arguments_are_rendered_anew(counting: ChatTemplateRenderer) -> None:
    call = ToolCall("c", "add", {"a": 1})
    messages = [USER, Message("assistant", "", (call,)), Message("tool", "2", tool_call_id="c", name="add")]
    first, _ = _renderings(counting, messages, [TOOL])
    assert _renderings(counting, messages, [TOOL]) == (first, 1)
