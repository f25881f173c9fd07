import json

import pytest

from envhub import Action, Message, Task, ToolCall, ToolSpec
from envhub.agents.engines import Engine, Request, WeightUpdate
from envhub.agents.engines.scripted import ScriptedEngine
from envhub.agents.parsers import HermesParser
from envhub.agents.rendering import ByteRenderer
from envhub.errors import ConfigError, EngineFault, UserError

TOOL = ToolSpec(
    "move",
    "Moves.",
    {
        "type": "object",
        "properties": {
            "to": {"enum": ["left", "right"]},
            "by": {"type": "integer"},
            "far": {"type": "boolean"},
            "rest": {"type": "array"},
        },
    },
)
RENDERER = ByteRenderer()


def _asking(**fields) -> Request:
    return Request(**{"id": "r", "token_ids": (1, 2, 3), "max_tokens": 1000, **fields})


async def _said(engine: Engine, **fields) -> str:
    return RENDERER.decode((await engine.generate(_asking(**fields))).token_ids)


async def test_what_is_said_are_byte_tokens_that_end_the_turn() -> None:
    engine = ScriptedEngine("fixed:é")
    generation = await engine.generate(_asking())
    assert generation.token_ids == (*"é".encode(), *RENDERER.stop_token_ids)
    assert (generation.logprobs, generation.versions) == ((0.0,) * 3, (0,) * 3)
    assert (generation.finish_reason, generation.prompt_token_ids) == ("stop", (1, 2, 3))
    assert engine.model == "scripted:fixed:é"


@pytest.mark.parametrize(
    ("most", "ids", "reason"), [(4, (97, 98, 99, 257), "stop"), (3, (97, 98, 99), "length"), (1, (97,), "length")]
)
async def test_max_tokens_cuts_what_is_said(most: int, ids: tuple[int, ...], reason: str) -> None:
    generation = await ScriptedEngine("fixed:abc").generate(_asking(max_tokens=most))
    assert (generation.token_ids, generation.finish_reason) == (ids, reason)
    assert len(generation.logprobs) == len(generation.versions) == len(ids)


async def test_the_fixed_and_null_policies_say_the_same_always() -> None:
    assert await _said(ScriptedEngine("null")) == ""
    assert await _said(ScriptedEngine("fixed:")) == ""
    assert await _said(ScriptedEngine("fixed:a:b c")) == "a:b c"


async def test_the_oracle_policy_says_the_environments_action() -> None:
    async def oracle() -> Action:
        return Action("so", (ToolCall("c", "move", {"by": 2}),))

    parsed = HermesParser().parse(await _said(ScriptedEngine(), oracle=oracle))
    assert parsed.text == "so"
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("move", {"by": 2})]


async def test_a_missing_oracle_is_an_engine_fault_that_names_the_remedy() -> None:
    async def silent() -> None:
        return None

    for oracle in (None, silent):
        with pytest.raises(EngineFault, match="define `oracle` or use another policy"):
            await ScriptedEngine("oracle").generate(_asking(oracle=oracle))


async def test_the_random_policy_follows_from_seed_task_turn_and_count() -> None:
    async def talk(seed: int, tasks: tuple[str, ...] = ("a", "b", "a")) -> list[str]:
        engine = ScriptedEngine("random", seed=seed)
        return [
            await _said(engine, task=Task(id=task), turn=turn, tools=(TOOL,)) for task in tasks for turn in range(8)
        ]

    first = await talk(0)
    assert first == await talk(0)
    assert first != await talk(1)
    assert first[:8] != first[16:]
    assert first[8:16] == await talk(0, ("b",))


async def test_the_random_policy_calls_the_tools_on_offer_with_fitting_arguments() -> None:
    engine = ScriptedEngine("random")
    parsed = [HermesParser().parse(await _said(engine, turn=turn, tools=(TOOL,))) for turn in range(40)]
    calls = [call for turn in parsed for call in turn.tool_calls]
    assert 0 < len(calls) < 40
    for call in calls:
        assert call.name == "move"
        assert call.arguments is not None and call.arguments.keys() == {"to", "by", "far", "rest"}
        assert call.arguments["to"] in ("left", "right")
        assert type(call.arguments["by"]) is int and type(call.arguments["far"]) is bool
    assert not any(["<tool_call>" in await _said(engine, turn=turn) for turn in range(20)])


async def test_a_callable_hears_the_messages_and_may_be_async() -> None:
    def plain(messages, request):
        return f"{messages[-1].text} {request.turn}"

    async def later(messages, request):
        return Action("hm", (ToolCall("c", "move", None, "{", "not JSON"),))

    asked = {"messages": (Message("user", "hi"),), "turn": 4}
    assert await _said(ScriptedEngine(plain), **asked) == "hi 4"
    assert ScriptedEngine(plain).model == "scripted:plain"
    said = await _said(ScriptedEngine(later), **asked)
    assert said == "hm\n<tool_call>" + json.dumps({"name": "move", "arguments": {}}) + "</tool_call>"


async def test_a_function_of_a_file_or_a_module_is_a_policy(tmp_path, monkeypatch) -> None:
    path = tmp_path / "my_policy.py"
    path.write_text("def speak(messages, request):\n    return 'from a file'\nWORD = 3\n")
    assert await _said(ScriptedEngine(f"{path}:speak")) == "from a file"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert await _said(ScriptedEngine("my_policy:speak")) == "from a file"
    with pytest.raises(UserError, match="is no function"):
        ScriptedEngine(f"{path}:WORD")
    with pytest.raises(UserError, match="has no 'speek'; did you mean 'speak'"):
        ScriptedEngine(f"{path}:speek")
    with pytest.raises(UserError, match="no_such_module_here"):
        ScriptedEngine("no_such_module_here:speak")


def test_an_unknown_policy_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"no scripted policy 'oracel'; there are oracle, .*; did you mean 'oracle'\?"):
        ScriptedEngine("oracel")
    with pytest.raises(UserError, match="fixed:TEXT"):
        ScriptedEngine("fixed")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"latency": -1}, "engine 'scripted': latency"),
        ({"latency": "soon"}, "latency.*given 'soon'"),
        ({"fail_every": -1}, "fail_every"),
        ({"fail_evry": 1}, "did you mean 'fail_every'"),
    ],
)
def test_a_wrong_option_is_named(options, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ScriptedEngine("null", **options)


async def test_what_a_policy_returns_must_be_an_action() -> None:
    with pytest.raises(TypeError, match="an action is a str or an Action, not int"):
        await ScriptedEngine(lambda messages, request: 3).generate(_asking())


async def test_every_nth_request_fails_when_asked_to() -> None:
    engine = ScriptedEngine("fixed:x", fail_every=3)
    for _ in range(3):
        assert [await _said(engine) for _ in range(2)] == ["x", "x"]
        with pytest.raises(EngineFault, match="fail_every=3"):
            await engine.generate(_asking())


async def test_tokens_are_counted_and_carry_the_version_of_their_weights() -> None:
    engine = ScriptedEngine("fixed:x")
    await engine.generate(_asking())
    await engine.update_weights(WeightUpdate(5))
    assert (await engine.generate(_asking())).versions == (5, 5)
    stats = engine.stats()
    assert (stats.requests, stats.prompt_tokens, stats.sampled_tokens) == (2, 6, 4)
    assert (stats.weight_version, stats.weight_updates) == (5, 1)
