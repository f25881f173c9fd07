import asyncio
import base64
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from envhub import Action, ImagePart, Message, Outcome, ToolCall, ToolSpec
from envhub.agents.engines import Request, SamplingParams
from envhub.agents.engines.openai import OpenAIEngine
from envhub.agents.executors import MultiTurnExecutor
from envhub.driver import Driver
from envhub.errors import EngineFault, UserError
from envhub.messages import TextPart
from envhub.specs import EnvironmentSpec

KEY = "sk-secret-of-the-test"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})


class Endpoint:
    """A loopback server that answers with what `answers` holds, in turn; the last one is for ever."""

    def __init__(self) -> None:
        self.answers: list[Any] = [said("hello")]
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.hung_up = asyncio.Event()
        self.asked = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.asked.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = await answer(self)
        return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)


def said(text: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}


def refusal(status: int, text: str = "no", **headers: str) -> Callable[[Endpoint], Awaitable[web.Response]]:
    async def make(endpoint: Endpoint) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    return make


async def hang(endpoint: Endpoint) -> web.Response:
    try:
        await asyncio.Event().wait()
    finally:
        endpoint.hung_up.set()
    raise AssertionError


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield endpoint
    await runner.cleanup()


@pytest.fixture
async def engine_of() -> AsyncIterator[Callable[..., Awaitable[OpenAIEngine]]]:
    made: list[OpenAIEngine] = []

    async def make(url: str, **options: Any) -> OpenAIEngine:
        engine = OpenAIEngine("probe-1", base_url=url, **{"retry_seconds": 0.001, **options})
        made.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in made:
        await engine.close()
        await engine.close()


def asking(*messages: Message, **fields: Any) -> Request:
    return Request("r", (), fields.pop("max_tokens", 16), messages=messages or (Message("user", "hi"),), **fields)


async def test_a_turn_is_sent_and_read(endpoint, engine_of) -> None:
    engine = await engine_of(endpoint.url + "/")
    generation = await engine.generate(
        asking(max_tokens=7, sampling=SamplingParams(temperature=0.5, top_p=0.9, stop=("\n",)))
    )
    assert generation.action == Action("hello", finish_reason="stop")
    assert (generation.finish_reason, generation.prompt_tokens, generation.sampled_tokens) == ("stop", 11, 3)
    assert endpoint.bodies == [
        {
            "model": "probe-1",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "stop": ["\n"],
        }
    ]
    stats = engine.stats()
    assert (stats.requests, stats.prompt_tokens, stats.sampled_tokens, stats.running) == (1, 11, 3, 0)
    assert stats.extra == {"retries": 0}


async def test_what_openai_does_not_know_is_sent_only_when_it_is_set(endpoint, engine_of) -> None:
    engine = await engine_of(endpoint.url, extra_body={"seed": 3, "top_p": None})
    await engine.generate(asking(sampling=SamplingParams(top_k=5, min_tokens=2, ignore_eos=True)))
    (body,) = endpoint.bodies
    assert (body["top_k"], body["min_tokens"], body["ignore_eos"], body["seed"]) == (5, 2, True, 3)
    assert "top_p" not in body


async def test_tools_and_images_travel_in_the_form_of_openai(endpoint, engine_of) -> None:
    call = {"id": "c9", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    endpoint.answers = [said(None, "tool_calls", tool_calls=[call], reasoning_content="I add")]
    engine = await engine_of(endpoint.url)
    conversation = (
        Message("user", (TextPart("look \ud800"), ImagePart(b"png"))),
        Message("assistant", "", (ToolCall("c1", "add", {"a": 2}, '{"a":2}'),), reasoning="hm"),
        Message("tool", "2", tool_call_id="c1"),
        Message("assistant", "again", (ToolCall("c2", "add", None, "{a", "arguments are not JSON"),)),
        Message("tool", "not JSON", tool_call_id="c2"),
    )
    generation = await engine.generate(asking(*conversation, tools=(ADD,)))
    expected = ToolCall("c9", "add", {"a": 1}, '{"a": 1}')
    assert generation.action == Action("", (expected,), "I add", finish_reason="stop")
    (body,) = endpoint.bodies
    assert body["tools"] == [ADD.to_openai()]
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'png').decode()}"}}
    assert body["messages"][0]["content"] == [{"type": "text", "text": "look ?"}, image]
    first, answer, second = body["messages"][1:4]
    sent = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    assert first == {"role": "assistant", "content": None, "tool_calls": [sent]}
    assert answer == {"role": "tool", "content": "2", "tool_call_id": "c1"}
    assert second["content"] == "again"
    assert json.loads(second["tool_calls"][0]["function"]["arguments"]) == {"malformed": "{a"}
    assert second["tool_calls"][0].keys() == {"id", "type", "function"}


@pytest.mark.parametrize(
    ("written", "arguments", "error"),
    [
        ("{a: 1", None, "arguments are not JSON"),
        ("[1]", None, "not a JSON object"),
        ("", {}, None),
        (None, {}, None),
    ],
)
async def test_a_calls_arguments_are_decoded_or_kept_with_their_error(
    endpoint, engine_of, written, arguments, error
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": written}}
    endpoint.answers = [said(None, "tool_calls", tool_calls=[call])]
    generation = await (await engine_of(endpoint.url)).generate(asking())
    (made,) = Action.of(generation.action).tool_calls
    assert made.arguments == arguments
    assert (made.error is None) if error is None else (error in made.error and made.raw == written)


@pytest.mark.parametrize(("given", "ours"), [("length", "length"), ("tool_calls", "stop"), ("content_filter", "stop")])
async def test_the_finish_reason_is_stop_or_length(endpoint, engine_of, given: str, ours: str) -> None:
    endpoint.answers = [said("x", given)]
    generation = await (await engine_of(endpoint.url)).generate(asking())
    assert generation.finish_reason == ours
    assert Action.of(generation.action).finish_reason == ours


async def test_an_endpoint_that_wants_max_completion_tokens_gets_it_from_then_on(endpoint, engine_of) -> None:
    endpoint.answers = [refusal(400, "'max_tokens' is not supported; use 'max_completion_tokens'"), said("hello")]
    engine = await engine_of(endpoint.url, retries=0)
    for _ in range(2):
        assert (await engine.generate(asking(max_tokens=9))).action.text == "hello"
    budgets = [{key: value for key, value in body.items() if key.startswith("max_")} for body in endpoint.bodies]
    assert budgets == [{"max_tokens": 9}, {"max_completion_tokens": 9}, {"max_completion_tokens": 9}]


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "7"}, 7, 7),
        ({"Retry-After": "900"}, 30, 30),
        ({"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}, 30, 30),
        ({"Retry-After": "soon"}, 0, 0.001),
        ({}, 0.0005, 0.001),
    ],
)
async def test_a_busy_endpoint_is_asked_again_when_it_says(
    endpoint, engine_of, monkeypatch, headers, least: float, most: float
) -> None:
    endpoint.answers = [refusal(429, "slow down", **headers), said("hello")]
    engine = await engine_of(endpoint.url)
    waits: list[float] = []
    sleep = asyncio.sleep

    async def waited(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", waited)
    assert (await engine.generate(asking())).action.text == "hello"
    (wait,) = waits
    assert least <= wait <= most
    assert engine.stats().extra["retries"] == 1


async def test_each_wait_is_about_twice_the_last(endpoint, engine_of, monkeypatch) -> None:
    endpoint.answers = [refusal(503)]
    engine = await engine_of(endpoint.url, retry_seconds=8.0, retries=5)
    waits: list[float] = []

    async def waited(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", waited)
    with pytest.raises(EngineFault):
        await engine.generate(asking())
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, (8, 16, 30, 30, 30), strict=True))


def _broken(text: str):
    async def make(endpoint: Endpoint) -> web.Response:
        return web.Response(text=text)

    return make


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refusal(500, "out of memory"), r"answered 500: out of memory \(tried 3 times\); see the server's log"),
        (refusal(429), r"answered 429: no \(tried 3 times\); lower the concurrency"),
        (refusal(408), "answered 408"),
        (refusal(409), "answered 409"),
        (_broken("<html>proxy"), "answered 200: <html>proxy, which is no chat completion"),
        (_broken(""), "answered 200: nothing, which is no chat completion"),
        (_broken("[" * 100_000), "which is no chat completion"),
        ({"error": {"message": "overloaded"}}, "overloaded.*check that base_url is an OpenAI-compatible endpoint"),
        ({"choices": []}, "which is no chat completion"),
        ({"choices": [{"message": None}]}, "which is no chat completion"),
        (said("x", tool_calls=[{"id": "c", "function": {"name": None}}]), "which is no chat completion"),
        (said("x", tool_calls=[{"id": "c"}]), "which is no chat completion"),
    ],
)
async def test_what_fails_for_ever_is_an_engine_fault(endpoint, engine_of, answer, told: str) -> None:
    endpoint.answers = [answer]
    engine = await engine_of(endpoint.url, retries=2)
    with pytest.raises(EngineFault, match=told) as caught:
        await engine.generate(asking())
    assert f"{endpoint.url}/chat/completions" in str(caught.value)
    assert len(endpoint.bodies) == 3
    assert (engine.stats().running, engine.stats().extra["retries"]) == (0, 2)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "OPENAI_API_KEY is not set; set it"),
        (403, "may not use model 'probe-1'"),
        (404, "check the model's name 'probe-1', and base_url"),
        (400, "check the model, the sampling parameters"),
        (422, "check the model, the sampling parameters"),
        (301, "base_url, which often ends with /v1"),
    ],
)
async def test_a_refusal_is_the_users_and_is_not_tried_again(endpoint, engine_of, status: int, remedy: str) -> None:
    endpoint.answers = [refusal(status, "no " * 200)]
    engine = await engine_of(endpoint.url)
    with pytest.raises(UserError) as caught:
        await engine.generate(asking())
    message = str(caught.value)
    assert message.startswith(f"engine 'openai': {endpoint.url}/chat/completions answered {status}: no no")
    assert remedy in message
    assert len(message) < 500
    assert len(endpoint.bodies) == 1


async def test_a_refused_port_is_an_engine_fault(engine_of) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        engine = await engine_of(url, retries=1)
        with pytest.raises(EngineFault, match=r"cannot be reached: .*\(tried 2 times\); check that the server runs"):
            await engine.generate(asking())


async def test_a_hung_endpoint_times_out_and_is_asked_again(endpoint, engine_of) -> None:
    endpoint.answers = [hang]
    engine = await engine_of(endpoint.url, timeout=0.05, retries=0)
    with pytest.raises(EngineFault, match=r"did not answer within 0.05 s \(tried 1 time\); raise timeout"):
        await engine.generate(asking())
    await endpoint.hung_up.wait()


async def test_cancelling_hangs_up(endpoint, engine_of) -> None:
    endpoint.answers = [hang]
    engine = await engine_of(endpoint.url)
    running = asyncio.create_task(engine.generate(asking()))
    await endpoint.asked.wait()
    assert engine.stats().running == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await endpoint.hung_up.wait()
    assert engine.stats().running == 0
    assert len(endpoint.bodies) == 1


async def test_the_key_is_sent_and_never_shown(endpoint, engine_of, monkeypatch, caplog) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    engine = await engine_of(endpoint.url, api_key_env="MY_KEY", retries=0)
    endpoint.answers = [said("hello"), refusal(401, "x" * 190 + f"bad key {KEY}"), refusal(500, f"bad key {KEY}")]
    await engine.generate(asking())
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(UserError, match="MY_KEY is not accepted; set it anew") as refused:
        await engine.generate(asking())
    with pytest.raises(EngineFault) as failed:
        await engine.generate(asking())
    for shown in (str(refused.value), str(failed.value), repr(engine), caplog.text):
        assert KEY[:6] not in shown


async def test_an_engine_that_is_not_open_says_so(endpoint) -> None:
    engine = OpenAIEngine("m", base_url=endpoint.url)
    with pytest.raises(EngineFault, match=r"is not started, or was closed; call start\(\)"):
        await engine.generate(asking())
    await engine.close()


async def test_an_episode_of_two_turns(endpoint, engine_of, write_environment) -> None:
    body = """
class Probe(Environment):
    async def reset(self, *, seed=None, options=None):
        self.heard = []
        return "begin", {}
    async def step(self, action):
        self.heard.append(action.text)
        return "go on", 1.0, len(self.heard) == 2, False, {}
"""
    spec: EnvironmentSpec = write_environment(body)
    endpoint.answers = [said("one"), said("two")]
    executor = MultiTurnExecutor(await engine_of(endpoint.url))
    rollout = await executor.run(spec, Driver(spec).tasks.get("train", 0))
    assert (rollout.outcome, rollout.reward, rollout.action_tokens) == (Outcome.FINISHED, 2.0, 6)
    assert [turn.action.text for turn in rollout.turns] == ["one", "two"]
    assert [turn.prompt_tokens for turn in rollout.turns] == [11, 11]
    assert [message["content"] for message in endpoint.bodies[1]["messages"]] == ["begin", "one", "go on"]
    endpoint.answers = [refusal(500)]
    executor = MultiTurnExecutor(await engine_of(endpoint.url, retries=0))
    failed = await executor.run(spec, Driver(spec).tasks.get("train", 0))
    assert (failed.outcome, failed.fault) == (Outcome.ENGINE_FAULT, "engine")
