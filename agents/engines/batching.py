"""Continuous batching on a transformers model: sequences of different lengths decoded together, one token a step."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from envhub.agents.engines.base import Generation, Request
from envhub.errors import EngineFault

_PREFILL_TOKENS = 8192  # prompts are read in batches of at most this many tokens, padding included


@dataclass(slots=True, eq=False)
class Sequence:
    """One running request. `decode` turns ids into text where stop strings must be found."""

    request: Request
    decode: Callable[[list[int]], str] | None = None
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    _random: random.Random | None = None

    def uniform(self, shared: torch.Generator) -> float:
        """A number from 0 to below 1 for the next token: of the request's own seed, or of the shared generator."""
        if self.request.seed is None:
            return float(torch.rand((), generator=shared, device=shared.device))
        self._random = self._random or random.Random(self.request.seed)
        return self._random.random()

    @property
    def token_ids(self) -> list[int]:
        """All ids so far."""
        return [*self.request.token_ids, *self.sampled]

    def take(self, token: int, logprob: float, version: int) -> None:
        """Append a sampled token and see whether it ends the sequence."""
        self.sampled.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        sampling = self.request.sampling
        stops = () if sampling.ignore_eos else self.request.stop_token_ids
        enough = len(self.sampled) >= sampling.min_tokens
        said_stop = self.decode is not None and any(stop in self.decode(self.sampled) for stop in sampling.stop)
        if (token in stops or said_stop) and enough:
            self.finish_reason = "stop"
        elif len(self.sampled) >= self.request.max_tokens:
            self.finish_reason = "length"

    def generation(self) -> Generation:
        """The finished result."""
        return Generation(
            tuple(self.sampled), tuple(self.logprobs), tuple(self.versions), self.finish_reason or "length",
            list(self.request.token_ids),
        )  # fmt: skip


class Batch:
    """Running sequences and their keys and values.

    Rows are aligned at their right ends and padded at the left, so that every row's next position is the same column;
    `lengths` holds each row's real length. Sequences without a row yet are prefilled at the next step.
    """

    def __init__(self, module: Any, generator: torch.Generator) -> None:
        self.module = module
        self.generator = generator
        self.sequences: list[Sequence] = []
        self._rows: list[Sequence] = []
        self._cache: list[tuple[torch.Tensor, torch.Tensor]] = []  # a layer: keys and values [rows, heads, width, size]
        self._logits: torch.Tensor | None = None  # [rows, vocabulary], of each row's next token

    def forget(self) -> None:
        """Drop all keys and values; running sequences are prefilled anew."""
        self._rows, self._cache, self._logits = [], [], None

    def drop(self, gone: Collection[Sequence]) -> None:
        """Remove these sequences."""
        if gone:
            self.sequences = [item for item in self.sequences if item not in gone]
            self._keep([item not in gone for item in self._rows])

    @torch.inference_mode()
    def step(self, version: int) -> list[Sequence]:
        """Sample one token for every sequence; returns those that ended, which leave the batch."""
        rows = set(map(id, self._rows))
        self._prefill([item for item in self.sequences if id(item) not in rows])
        assert self._logits is not None
        tokens, logprobs = sample(self._logits, [row.request for row in self._rows], self._rows, self.generator)
        for row, token, logprob in zip(self._rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.take(token, logprob, version)
        ended = [row for row in self._rows if row.finish_reason is not None]
        self.sequences = [item for item in self.sequences if item.finish_reason is None]
        alive = [row.finish_reason is None for row in self._rows]
        self._keep(alive)
        if self._rows:
            self._decode(tokens[torch.tensor(alive, device=tokens.device)])
        return ended

    def _prefill(self, new: list[Sequence]) -> None:
        """Read what these sequences begin with; what several begin with alike is read once."""
        alike: dict[tuple[int, ...], list[Sequence]] = {}
        for item in new:
            alike.setdefault(tuple(item.token_ids), []).append(item)
        prompts = sorted(alike, key=len)
        while prompts:
            count = len(prompts)
            while count > 1 and count * len(prompts[count - 1]) > _PREFILL_TOKENS:
                count -= 1
            self._prefill_together(prompts[:count], [alike[prompt] for prompt in prompts[:count]])
            prompts = prompts[count:]

    def _prefill_together(self, prompts: list[tuple[int, ...]], sequences: list[list[Sequence]]) -> None:
        """Read prompts in one batch; each is that of some sequences, a row each."""
        width, device = max(map(len, prompts)), self.module.device
        padded = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
        mask = torch.zeros_like(padded)
        for row, tokens in enumerate(prompts):
            padded[row, width - len(tokens) :] = torch.tensor(tokens, device=device)
            mask[row, width - len(tokens) :] = 1
        cache = DynamicCache()
        out = self.module(
            input_ids=padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache, use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        counts = torch.tensor([len(items) for items in sequences], device=device)
        layers = [
            (keys.repeat_interleave(counts, 0), values.repeat_interleave(counts, 0)) for keys, values in _layers(cache)
        ]
        logits = out.logits[:, -1].float().repeat_interleave(counts, 0)
        new = [item for items in sequences for item in items]
        if self._logits is None or not self._rows:
            self._rows, self._cache, self._logits = new, layers, logits
            return
        width = max(width, self._cache[0][0].shape[2])
        self._cache = [
            (torch.cat([_wide(k, width), _wide(nk, width)]), torch.cat([_wide(v, width), _wide(nv, width)]))
            for (k, v), (nk, nv) in zip(self._cache, layers, strict=True)
        ]
        self._rows = [*self._rows, *new]
        self._logits = torch.cat([self._logits, logits])

    def _decode(self, tokens: torch.Tensor) -> None:
        """Advance every row by the token that was sampled for it."""
        lengths = torch.tensor([len(row.token_ids) for row in self._rows], device=tokens.device)
        width = self._cache[0][0].shape[2] + 1
        columns = torch.arange(width, device=tokens.device)
        mask = (columns[None, :] >= width - lengths[:, None]).long()
        cache = DynamicCache()
        for index, (keys, values) in enumerate(self._cache):
            cache.update(keys, values, index)
        out = self.module(
            input_ids=tokens[:, None], attention_mask=mask, position_ids=(lengths - 1)[:, None],
            past_key_values=cache, use_cache=True,
        )  # fmt: skip
        self._cache = _layers(cache)
        self._logits = out.logits[:, -1].float()

    def _keep(self, alive: list[bool]) -> None:
        """Keep some rows, and no more columns than the longest of them needs."""
        if all(alive) or self._logits is None:
            return
        self._rows = [row for row, keep in zip(self._rows, alive, strict=True) if keep]
        if not self._rows:
            self.forget()
            return
        chosen = torch.tensor([i for i, keep in enumerate(alive) if keep], device=self._logits.device)
        self._logits = self._logits[chosen]
        width = self._cache[0][0].shape[2]
        need = min(width, max(len(row.token_ids) for row in self._rows))
        self._cache = [(k[chosen][:, :, width - need :], v[chosen][:, :, width - need :]) for k, v in self._cache]


def _layers(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def _wide(tensor: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (0, 0, width - tensor.shape[2], 0))


def sample(
    logits: torch.Tensor, requests: list[Request], rows: list[Sequence], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row from logits [rows, vocabulary]; returns ids and logprobs [rows].

    Logprobs are of the distribution sampled from: after temperature, then top-k, then top-p. Temperature 0 takes the
    most likely token, with its logprob at temperature 1.
    """
    device = logits.device
    temperature = torch.tensor([r.sampling.temperature or 1.0 for r in requests], device=device)
    logits = logits / temperature[:, None]
    for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
        stops = () if request.sampling.ignore_eos else request.stop_token_ids
        if len(row.sampled) < request.sampling.min_tokens and stops:
            logits[index, list(stops)] = -torch.inf
        if request.sampling.top_k:
            least = logits[index].topk(min(request.sampling.top_k, logits.shape[1])).values[-1]
            logits[index, logits[index] < least] = -torch.inf
        if request.sampling.top_p < 1:
            ordered, order = logits[index].softmax(0).sort(descending=True)
            beyond = ordered.cumsum(0) - ordered >= request.sampling.top_p
            logits[index, order[beyond]] = -torch.inf
    logprobs = logits.log_softmax(-1)
    if bool(logprobs.isnan().any()):
        raise EngineFault("the model's logits are not finite: its weights have grown too large, or are damaged")
    # By inverting the distribution function, so that a sequence's tokens depend on no other's randomness.
    cumulative = logprobs.double().exp().cumsum(-1)
    total = cumulative[:, -1]
    uniform = torch.tensor([row.uniform(generator) for row in rows], dtype=torch.float64, device=device)
    at = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, at[:, None], right=True)[:, 0]
    greedy = torch.tensor([r.sampling.temperature == 0 for r in requests], device=device)
    tokens = torch.where(greedy, logprobs.argmax(-1), drawn)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
