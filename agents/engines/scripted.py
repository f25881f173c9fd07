"""An engine whose policy is a script: for checks, demonstrations, tests, and oracles."""

import asyncio
import inspect
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from envhub.agents.engines.base import Engine, EngineStats, Generation, Request, Seed, WeightUpdate
from envhub.agents.rendering.bytes import END, ByteRenderer
from envhub.environment import validate_config
from envhub.errors import EngineFault, UserError, did_you_mean
from envhub.messages import Action, ActionLike
from envhub.specs import load_object
from envhub.tasks import hashed_seed

POLICIES = ("oracle", "null", "random")
_WORDS = ("yes", "no", "left", "right", "up", "down", "one", "two", "0", "1", "7", "42", "the", "answer", "is", "stop")


class ScriptedOptions(BaseModel):
    """Options of a scripted engine.

    `latency` is slept before each answer, in seconds. `fail_every` N makes every N-th request an engine fault, for
    rehearsing what a run does then. `seed` is that of the `random` policy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    latency: float = Field(0.0, ge=0, le=86_400)
    fail_every: int = Field(0, ge=0, le=1_000_000_000)
    seed: Seed = 0


class ScriptedEngine(Engine):
    """Says what a policy says, as byte-level tokens.

    `policy` is `"oracle"` (the environment's own right action), `"null"` (nothing), `"random"` (seeded by its seed, the
    task, the turn, and how often that turn was asked for), `"fixed:TEXT"`, `"file.py:function"` or `"module:function"`, or a callable of (messages, request) that
    returns a str or an Action and may be async. Logprobs are 0.0: a script chooses with certainty.
    """

    name = "scripted"

    def __init__(self, policy: str | Callable[..., Any] = "oracle", **options: Any) -> None:
        self.options: ScriptedOptions = validate_config(ScriptedOptions, options, "engine 'scripted'")
        self.model = f"scripted:{policy if isinstance(policy, str) else getattr(policy, '__name__', 'policy')}"
        self._policy = _policy(policy, self.options.seed)
        self._renderer = ByteRenderer()
        self._running = asyncio.Event()
        self._running.set()
        self._stats = EngineStats()

    async def generate(self, request: Request) -> Generation:
        self._stats.requests += 1
        if self.options.fail_every and self._stats.requests % self.options.fail_every == 0:
            raise EngineFault(f"engine {self.name!r} failed on purpose: fail_every={self.options.fail_every}")
        await self._running.wait()
        if self.options.latency:
            await asyncio.sleep(self.options.latency)
        said = self._policy(request)
        if inspect.isawaitable(said):
            said = await said
        ids = self._renderer.encode(_as_text(said))
        cut = len(ids) + 1 > request.max_tokens
        ids = ids[: request.max_tokens] if cut else (*ids, END)
        self._stats.prompt_tokens += len(request.token_ids)
        self._stats.sampled_tokens += len(ids)
        count = len(ids)
        return Generation(
            ids, (0.0,) * count, (self.weight_version,) * count, "length" if cut else "stop", request.token_ids
        )

    async def update_weights(self, update: WeightUpdate) -> None:
        """A script has no weights; the version is counted all the same, so that loops can be tested with it."""
        self.weight_version = update.version
        self._stats.weight_updates += 1

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    def stats(self) -> EngineStats:
        self._stats.weight_version = self.weight_version
        return self._stats


def _policy(policy: str | Callable[..., Any], seed: int) -> Callable[[Request], Any]:
    if callable(policy):
        return lambda request: policy(request.messages, request)
    kind, separator, rest = policy.partition(":")
    if kind == "fixed" and separator:
        return lambda request: rest
    if separator:
        function = load_object(policy)
        if not callable(function):
            raise UserError(f"scripted policy {policy!r} is no function")
        return lambda request: function(request.messages, request)
    seen: Counter[tuple[str, int]] = Counter()
    table: dict[str, Callable[[Request], Any]] = {
        "oracle": _oracle,
        "null": lambda request: "",
        "random": lambda request: _random(request, seed, seen),
    }
    if kind not in table:
        known = f"{', '.join(POLICIES)}, fixed:TEXT, FILE.py:FUNCTION or MODULE:FUNCTION"
        raise UserError(f"no scripted policy {policy!r}; there are {known}{did_you_mean(kind, POLICIES)}")
    return table[kind]


async def _oracle(request: Request) -> Action:
    action = await request.oracle() if request.oracle is not None else None
    if action is None:
        raise EngineFault("the environment names no oracle action here; define `oracle` or use another policy")
    return action


def _random(request: Request, seed: int, seen: Counter[tuple[str, int]]) -> ActionLike:
    turn = ("" if request.task is None else request.task.id, request.turn)
    seen[turn] += 1
    rng = random.Random(hashed_seed("random policy", seed, *turn, seen[turn]))
    if request.tools and rng.random() < 0.7:
        tool = rng.choice(request.tools)
        arguments = {name: _value(schema, rng) for name, schema in tool.parameters.get("properties", {}).items()}
        return f"<tool_call>{json.dumps({'name': tool.name, 'arguments': arguments})}</tool_call>"
    return " ".join(rng.choices(_WORDS, k=rng.randrange(1, 6)))


def _value(schema: dict[str, Any], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds: dict[str, Any] = {
        "integer": rng.randrange(-3, 100),
        "number": rng.random(),
        "boolean": rng.random() < 0.5,
        "array": [],
        "object": {},
    }
    return kinds.get(schema.get("type", ""), rng.choice(_WORDS))


def _as_text(said: Any) -> str:
    """The text that the model would have sampled for an action."""
    action = Action.of(said)
    if not action.tool_calls:
        return action.text
    calls = (
        f"<tool_call>{json.dumps({'name': call.name, 'arguments': dict(call.arguments or {})})}</tool_call>"
        for call in action.tool_calls
    )
    return "\n".join([action.text, *calls]).lstrip("\n")
