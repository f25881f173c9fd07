"""An engine that speaks to any OpenAI-compatible endpoint. It gives text, not token ids: for evaluation, not training."""

import asyncio
import email.utils
import ipaddress
import json
import os
import random
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx
from pydantic import BaseModel, ConfigDict, Field, field_validator

from envhub.agents.engines.base import ContextLength, Engine, EngineStats, Generation, Request, SamplingParams
from envhub.environment import validate_config
from envhub.errors import EngineFault, UserError
from envhub.messages import Action, Message, ToolCall

BASE_URL = "https://api.openai.com/v1"
LONGEST_WAIT = 30.0

_PASSING = frozenset({408, 409, 429})
_OWN_KEYS = frozenset({"messages", "model", "n", "stream", "tools"})
_FULL = SamplingParams()


class OpenAIOptions(BaseModel):
    """Options of an OpenAI-compatible endpoint.

    `base_url` is what `/chat/completions` is appended to; it defaults to the environment variable `OPENAI_BASE_URL`,
    then to OpenAI's own. The key is read from the environment variable that `api_key_env` names; endpoints on this
    machine need none. `timeout` is the deadline of one attempt, in seconds. What may pass is tried again `retries`
    times: first after about `retry_seconds`, then after twice as long each time, or when `Retry-After` says so (up to
    30 s). `max_context` is the model's context in tokens. `extra_body` is added to each request; a null in it leaves
    out what would be sent under that name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    base_url: str = Field(default_factory=lambda: os.environ.get("OPENAI_BASE_URL") or BASE_URL, validate_default=True)
    api_key_env: str = Field("OPENAI_API_KEY", min_length=1)
    timeout: float = Field(120.0, gt=0, le=86_400)
    retries: int = Field(4, ge=0, le=1_000)
    retry_seconds: float = Field(0.5, ge=0, le=86_400)
    max_context: ContextLength | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        try:
            url = httpx.URL(value)
        except httpx.InvalidURL as problem:
            raise ValueError(f"not a URL: {problem}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("a base_url begins with http:// or https:// and names a host")
        return value.rstrip("/")

    @field_validator("extra_body")
    @classmethod
    def _leaves_own_keys(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_OWN_KEYS & value.keys())
        if taken:
            raise ValueError(f"the engine itself decides {', '.join(taken)}")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as problem:
            raise ValueError(f"it cannot be sent as JSON: {problem}") from None
        return value


class OpenAIEngine(Engine):
    """Generates by `POST {base_url}/chat/completions`, one choice, not streamed.

    Sent are the messages (text, images as data URLs, tool calls and their results), the tools, the turn's token budget
    and the sampling parameters; `top_k`, `min_tokens` and `ignore_eos`, which OpenAI does not know, only where they are
    not the default. An earlier call whose arguments are no JSON object is sent as `{"malformed": TEXT}`, since servers
    refuse a conversation that they cannot decode.

    What may pass (no connection, time out, status 408, 409, 429 and 5xx, an answer that is no completion) is tried
    again and then raises EngineFault; any other refusal raises UserError at once. Once the endpoint has answered a request,
    a 400, 413 or 422 is about that one request and raises EngineFault. `stats().extra["retries"]` counts.
    """

    speaks: ClassVar[str] = "chat"
    name = "openai"

    def __init__(self, model: str, **options: Any) -> None:
        self.model = model
        self.options: OpenAIOptions = validate_config(OpenAIOptions, options, "engine 'openai'")
        self.max_context = self.options.max_context
        self._url = f"{self.options.base_url}/chat/completions"
        address = httpx.URL(self.options.base_url)
        if address.userinfo or address.query or address.fragment:
            raise UserError(
                "engine 'openai': a base_url holds no user, password or query, since addresses are logged; "
                "set the key in an environment variable that api_key_env names"
            )
        self._budget = "max_tokens"
        self._key = ""
        self._served = False
        self._client: httpx.AsyncClient | None = None
        self._random = random.Random()
        self._stats = EngineStats(extra={"retries": 0.0})

    async def start(self) -> None:
        """Read the key and open the client; nothing is sent. Raises UserError where a key is needed and missing."""
        if self._client is not None:
            return
        local = _is_loopback(httpx.URL(self._url).host)
        variable = self.options.api_key_env
        self._key = os.environ.get(variable, "").strip()
        if not self._key and not local:
            raise UserError(
                f"engine 'openai': {self._url} needs a key; set the environment variable {variable}, "
                "or name another one with api_key_env"
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise UserError(f"engine 'openai': the key in {variable} has characters that no key has; copy it anew")
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,  # each attempt has one deadline over all of its parts
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=not local,  # a proxy does not reach this machine's own ports
        )

    async def generate(self, request: Request) -> Generation:
        self._stats.requests += 1
        self._stats.running += 1
        try:
            generation = await self._with_retries(request)
        finally:
            self._stats.running -= 1
        self._stats.prompt_tokens += generation.prompt_tokens
        self._stats.sampled_tokens += generation.sampled_tokens
        return generation

    def stats(self) -> EngineStats:
        return self._stats

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _with_retries(self, request: Request) -> Generation:
        pause = self.options.retry_seconds
        for attempt in range(1, self.options.retries + 2):
            try:
                return await self._attempt(request)
            except _PassingError as problem:
                if attempt > self.options.retries:
                    tries = f"{attempt} time{'s' if attempt > 1 else ''}"
                    raise EngineFault(
                        f"engine 'openai': {self._url} {problem} (tried {tries}); {problem.remedy}"
                    ) from problem.__cause__
                self._stats.extra["retries"] += 1
                await asyncio.sleep(max(problem.wait, pause * self._random.uniform(0.5, 1.0)))
                pause = min(2 * pause, LONGEST_WAIT)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, request: Request) -> Generation:
        body = self._body(request)
        response = await self._post(body)
        if response.status_code == 400 and "max_tokens" in body and "max_completion_tokens" in response.text:
            self._budget = "max_completion_tokens"
            response = await self._post(self._body(request))
        status = response.status_code
        if status in _PASSING or status >= 500:
            remedy = "see the server's log" if status >= 500 else "lower the concurrency, or raise retries"
            raise _PassingError(self._answered(response), remedy, _retry_after(response))
        if status in (400, 413, 422) and self._served:
            # The endpoint works; this one request is what it cannot take (too long, filtered).
            raise EngineFault(f"engine 'openai': {self._url} {self._answered(response)}")
        if status != 200:
            raise UserError(f"engine 'openai': {self._url} {self._answered(response)}; {self._remedy(status)}")
        try:
            made = _generation(response.json())
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
            remedy = "check that base_url is an OpenAI-compatible endpoint"
            raise _PassingError(f"{self._answered(response)}, which is no chat completion", remedy) from problem
        self._served = True
        return made

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        if self._client is None:
            raise EngineFault("engine 'openai' is not started, or was closed; call start() first")
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self._client.post(self._url, content=content)
        except TimeoutError as problem:
            seconds = self.options.timeout
            raise _PassingError(
                f"did not answer within {seconds:g} s", "raise timeout, or lower the concurrency"
            ) from problem
        except httpx.RequestError as problem:
            detail = str(problem) or type(problem).__name__
            remedy = "check that the server runs and that base_url is right"
            raise _PassingError(f"cannot be reached: {detail}", remedy) from problem

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [_to_openai(message) for message in request.messages],
            self._budget: request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if request.tools:
            body["tools"] = [tool.to_openai() for tool in request.tools]
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        for key in ("top_k", "min_tokens", "ignore_eos"):
            if getattr(sampling, key) != getattr(_FULL, key):
                body[key] = getattr(sampling, key)
        extra = self.options.extra_body
        return {key: value for key, value in {**body, **extra}.items() if key not in extra or value is not None}

    def _answered(self, response: httpx.Response) -> str:
        """Status and the first 200 characters of the answer, never the key."""
        text = " ".join(response.text.split())
        if self._key:
            text = text.replace(self._key, "***")
        return f"answered {response.status_code}: {text[:200] or 'nothing'}"

    def _remedy(self, status: int) -> str:
        variable = self.options.api_key_env
        if status == 401:
            return f"{variable} is not accepted; set it anew" if self._key else f"{variable} is not set; set it"
        if status == 403:
            return f"the key in {variable} may not use model {self.model!r}"
        if status == 404 or 300 <= status < 400:
            return f"check the model's name {self.model!r}, and base_url, which often ends with /v1"
        return "check the model, the sampling parameters, extra_body and the length of the context"


class _PassingError(Exception):
    """A failure that may pass, what to do if it does not, and how many seconds the server asks to wait."""

    def __init__(self, message: str, remedy: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.wait = wait


def _to_openai(message: Message) -> dict[str, Any]:
    out = message.to_dict()
    out.pop("reasoning", None)
    if message.tool_calls:
        out["content"] = out["content"] or None
        out["tool_calls"] = [_call_to_openai(call) for call in message.tool_calls]
    return out


def _call_to_openai(call: ToolCall) -> dict[str, Any]:
    arguments = {"malformed": call.raw} if call.arguments is None else dict(call.arguments)
    function = {"name": call.name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def _generation(answer: Any) -> Generation:
    """What a chat completion says. Raises ValueError and its like where it is none."""
    choice = answer["choices"][0]
    said = choice["message"]
    text = said.get("content") or said.get("refusal") or ""
    reasoning = said.get("reasoning_content") or said.get("reasoning") or None
    calls = [_with_arguments(call) for call in said.get("tool_calls") or ()]
    message = Message.from_dict({"role": "assistant", "content": text, "tool_calls": calls})
    if not isinstance(reasoning, str | None) or not all(isinstance(call.name, str) for call in message.tool_calls):
        raise ValueError("reasoning or a tool's name is no text")
    reason = "length" if choice.get("finish_reason") == "length" else "stop"
    action = Action(message.text, message.tool_calls, reasoning, finish_reason=reason)
    usage = answer.get("usage") or {}
    return Generation(
        action=action,
        finish_reason=reason,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        sampled_tokens=int(usage.get("completion_tokens") or 0),
    )


def _with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with `{}` where a server leaves out the arguments of a tool that takes none."""
    function = call["function"]
    return {"id": call.get("id"), "function": {**function, "arguments": function.get("arguments") or "{}"}}


def _retry_after(response: httpx.Response) -> float:
    """The seconds of `Retry-After`, at most 30; 0 where there is none, or none that can be read."""
    given = response.headers.get("Retry-After", "")
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(given).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(seconds, LONGEST_WAIT) if seconds > 0 else 0.0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
