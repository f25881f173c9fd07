"""The contract of an engine: token ids in; token ids, logprobs, finish reason and weight versions out."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from envhub.messages import Action, ActionLike, ImagePart, Message, ToolSpec
from envhub.tasks import Task

MOST_TOKENS, MOST_TURNS = 1_000_000_000, 1_000_000
"""Of an episode, and so of any part of it; the bounds of `envhub.limits.Limits`."""

_COLDEST = 0.01


def _computable(temperature: float) -> float:
    if 0 < temperature < _COLDEST:  # logits divided by less overflow
        raise ValueError(f"a temperature is 0 (greedy) or at least {_COLDEST}")
    return temperature


Temperature: TypeAlias = Annotated[float, Field(ge=0, le=2), AfterValidator(_computable)]
Seed: TypeAlias = Annotated[int, Field(ge=0, le=2**63 - 1)]
TokenCount: TypeAlias = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
ContextLength: TypeAlias = Annotated[int, Field(ge=2, le=MOST_TOKENS)]
TurnCount: TypeAlias = Annotated[int, Field(ge=1, le=MOST_TURNS)]
BatchSize: TypeAlias = Annotated[int, Field(ge=1, le=65_536)]


class SamplingParams(BaseModel):
    """How to sample. Immutable, one object for each rollout; a turn's token budget is applied to a copy.

    `top_k` 0 and `top_p` 1 mean the full distribution. `max_tokens` None leaves it to the episode's limits. Logprobs
    are always those of the distribution that was sampled from (after temperature, top-k and top-p). A temperature is 0
    (greedy) or at least 0.01.
    A request's stop tokens are not sampled before `min_tokens`; with `ignore_eos` they do not end the turn.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: Temperature = 1.0
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=1_000_000)
    max_tokens: TokenCount | None = None
    min_tokens: int = Field(0, ge=0, le=MOST_TOKENS)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    Token engines read `token_ids` (the whole context), `stop_token_ids` and `images`; chat engines read `messages` and
    `tools`. `max_tokens` is the turn's hard budget. `oracle` asks the environment for its right action; only scripted
    engines use it. `seed` is that of the request's own randomness, for engines that heed it; None means the engine's.
    `id` is unique among the requests in flight. `token_ids` must not be changed by the engine.
    """

    id: str
    token_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    images: tuple[ImagePart, ...] = ()
    task: Task | None = None
    turn: int = 0
    seed: int | None = None
    oracle: Callable[[], Awaitable[Action | None]] | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine made of a request.

    Token engines give `token_ids` (including the stop token where one ended the turn), and for each of them its logprob
    and the weight version that sampled it. `prompt_token_ids` are the ids that the engine really conditioned on, where
    it reports them. `finish_reason` is `"stop"` or `"length"`. Chat engines give `action` instead, and token counts.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finish_reason: str = "stop"
    prompt_token_ids: Sequence[int] | None = None
    action: ActionLike | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New weights for an engine: named tensors of this process, or a safetensors file or folder of them.

    Names and shapes are those of the Hugging Face checkpoint of the model.
    """

    version: int
    tensors: Mapping[str, Any] | None = None
    path: Path | None = None


@dataclass(slots=True)
class EngineStats:
    """Counters since the start, and what is going on now."""

    requests: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    running: int = 0
    weight_version: int = 0
    weight_updates: int = 0
    extra: dict[str, float] = field(default_factory=dict)


class Engine(ABC):
    """Generates. Started once before use and closed by the one who started it.

    `speaks` is `"tokens"` (the executor renders and records token ids) or `"chat"` (the engine takes messages; nothing
    can be trained on). `max_context` is the longest prompt plus output in tokens, None where there is none to know.
    `takes_part` says that a weight update may hold some of the weights only; the others stay as they are then.
    """

    speaks: ClassVar[str] = "tokens"
    takes_part: ClassVar[bool] = False
    name: str = "engine"
    model: str = ""
    max_context: int | None = None
    weight_version: int = 0

    async def start(self) -> None:  # noqa: B027 - an engine without anything to load needs none
        """Load what is needed. Raises UserError for what the user can repair."""

    @abstractmethod
    async def generate(self, request: Request) -> Generation:
        """Generate one turn. Raises EngineFault. Cancelling the awaiting task stops the generation."""

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load new weights, forget every cached prefix, and count `weight_version` up to `update.version`.

        Requests in flight go on with the new weights; the versions of their tokens tell which were sampled when.
        """
        raise TypeError(f"engine {self.name!r} cannot update weights")

    async def pause(self) -> None:
        """Stop generating; requests in flight and new ones wait."""
        raise TypeError(f"engine {self.name!r} cannot pause")

    async def resume(self) -> None:
        """Go on after `pause`."""
        raise TypeError(f"engine {self.name!r} cannot resume")

    def stats(self) -> EngineStats:
        """Counters since the start."""
        return EngineStats()

    async def close(self) -> None:  # noqa: B027
        """Free everything. Safe to call twice."""
