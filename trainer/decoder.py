"""The hidden states before action tokens, in which a prompt that rows share is computed once."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache

from envhub.trainer.arithmetic import Arithmetic
from envhub.trainer.batch import Rows, micro_batches, partition

# Keys and values of a layer, each [rows, heads, tokens, size].
Layer: TypeAlias = tuple[Tensor, Tensor]

_log = logging.getLogger(__name__)
_LEAST = 8  # tokens of a prompt that are worth computing apart


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before the tokens of a micro-batch: the layers of prompts, `lengths` [rows] long, padded at the right."""

    layers: list[Layer]
    lengths: Tensor


def attention_of(token_ids: Tensor, lengths: Tensor) -> Tensor:
    """The attention mask [rows, tokens] of rows that are padded at the right."""
    columns = torch.arange(token_ids.shape[1], device=token_ids.device)
    return (columns[None] < lengths[:, None]).long()


def positions(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every masked token but those in the first column, which follow nothing."""
    chosen = mask.bool().clone()
    chosen[:, 0] = False
    rows, at = chosen.nonzero(as_tuple=True)
    return rows, at


class Decoder:
    """A causal language model but for its output layer, as its `get_decoder()` gives it.

    `shares` says that it gives the same hidden states when the beginning of a row is given as keys and values: probed
    once (a failed probe is logged with its reason), and not where layers see a window only (its distance would count the padding of the prompts) or activations
    are computed again (transformers then drops what is cached).
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.shares = _can_share(module) and self._probe()

    @torch.no_grad()
    def _probe(self) -> bool:
        device = self.module.device
        ids = torch.arange(14, device=device).reshape(2, 7) % self.module.config.get_text_config().vocab_size
        lengths, cut = torch.tensor([7, 6], device=device), torch.tensor([4, 2], device=device)
        was_training, reason = self.module.training, ""
        self.module.eval()
        try:
            whole = self.whole(ids, lengths)
            prefix = Prefix(self.encode(ids[:, :4], cut), cut)
            for row in range(2):
                tail = whole[row, cut[row] : lengths[row]]
                found = self._after(ids, lengths, prefix)[row, : len(tail)]
                if not torch.allclose(found, tail, atol=1e-4, rtol=1e-4):
                    reason = f"its hidden states then differ by {float((found - tail).abs().max()):.3g}"
        except Exception as problem:  # whatever a model without such a cache raises
            reason = f"{type(problem).__name__}: {' '.join(str(problem).split())[:500]}"
        finally:
            self.module.train(was_training)
        if reason:
            name = type(self.module).__name__
            _log.warning(
                "%s cannot go on from a cached prompt (%s): prompts that rows share are computed again for each row",
                name,
                reason,
            )
        return not reason

    def _run(self, token_ids: Tensor, attention: Tensor, **inputs: Any) -> Any:
        given = {"use_cache": False, **inputs}
        return self.module(input_ids=token_ids, attention_mask=attention, **given)

    def whole(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """The hidden states [rows, tokens, width] of whole rows."""
        hidden: Tensor = self._run(token_ids, attention_of(token_ids, lengths)).last_hidden_state
        return hidden

    def encode(self, token_ids: Tensor, lengths: Tensor) -> list[Layer]:
        """Keys and values of every layer for prompts [prompts, tokens] of these lengths."""
        cache: Any = DynamicCache()
        self._run(token_ids, attention_of(token_ids, lengths), past_key_values=cache, use_cache=True)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _after(self, token_ids: Tensor, lengths: Tensor, prefix: Prefix) -> Tensor:
        """Hidden states [rows, tokens, width] of what comes after the prefix of each row."""
        cache = DynamicCache()
        for number, (keys, values) in enumerate(prefix.layers):
            cache.update(keys, values, number)
        rest = lengths - prefix.lengths
        offsets = torch.arange(int(rest.max()), device=token_ids.device)
        place = (prefix.lengths[:, None] + offsets).clamp(max=token_ids.shape[1] - 1)
        ids = token_ids.gather(1, place)
        before = torch.arange(prefix.layers[0][0].shape[2], device=token_ids.device)[None] < prefix.lengths[:, None]
        attention = torch.cat([before.long(), attention_of(ids, rest)], 1)
        hidden: Tensor = self._run(ids, attention, past_key_values=cache, position_ids=place).last_hidden_state
        return hidden

    def __call__(self, token_ids: Tensor, lengths: Tensor, mask: Tensor, prefix: Prefix | None = None) -> Tensor:
        """The hidden states [actions, width] before each masked token, in the order of `positions`.

        `token_ids`, `mask` [rows, tokens] are whole rows, padded at the right; with a `prefix`, which holds no token
        that precedes an action token directly, only what comes after it is computed.
        """
        rows, at = positions(mask)
        if prefix is None:
            return self.whole(token_ids, lengths)[rows, at - 1]
        return self._after(token_ids, lengths, prefix)[rows, at - 1 - prefix.lengths[rows]]


def _can_share(module: Any) -> bool:
    """Whether nothing that the probe is too short to see speaks against it."""
    text = module.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ()
    windows = bool(getattr(text, "sliding_window", None)) or any(kind != "full_attention" for kind in kinds)
    return not windows and not module.is_gradient_checkpointing


def passes(
    decoder: Decoder, rows: Rows, token_budget: int, arithmetic: Arithmetic
) -> Iterator[tuple[Rows, Prefix | None]]:
    """The micro-batches of rows with the prompts that stand before them, each prompt computed once.

    A micro-batch holds at most `token_budget` tokens with padding (or one row), prompts included. Where gradients are on,
    the caller takes the gradient of each micro-batch before it asks for the next; the prompts' own follow when all rows
    that begin with them are done.
    """
    prompts = _prompts(rows) if decoder.shares else []
    alone = set(range(len(rows))) - {row for prompt in prompts for row in prompt.rows}
    if alone:
        for part in micro_batches(rows.select(sorted(alone)) if prompts else rows, token_budget):
            yield part, None
    while prompts:
        count = _fitting([prompt.length for prompt in prompts], token_budget // 2)
        yield from _after_prompts(decoder, rows, prompts[:count], token_budget, arithmetic)
        prompts = prompts[count:]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The first `length` tokens of some rows, which are the same."""

    rows: list[int]
    length: int


def _prompts(rows: Rows) -> list[_Prompt]:
    """The prompts that several rows share, longest first: all before the first action token but the token before it."""
    first = (rows.mask.cumsum(1) == 0).sum(1).tolist()
    found: dict[bytes, list[int]] = {}
    for row, ids in enumerate(rows.token_ids.numpy()):
        length = min(first[row], int(rows.lengths[row])) - 1
        if length >= _LEAST:
            found.setdefault(ids[:length].tobytes(), []).append(row)
    out = [_Prompt(same, len(key) // 8) for key, same in found.items() if len(same) > 1]
    return sorted(out, key=lambda prompt: -prompt.length)


def _fitting(lengths: Sequence[int], budget: int) -> int:
    """How many of the lengths, longest first, fit into the budget when they are padded; at least one."""
    return max(1, min(len(lengths), budget // lengths[0]))


def _after_prompts(
    decoder: Decoder, rows: Rows, prompts: Sequence[_Prompt], token_budget: int, arithmetic: Arithmetic
) -> Iterator[tuple[Rows, Prefix]]:
    device, width = arithmetic.device, prompts[0].length
    lengths = torch.tensor([prompt.length for prompt in prompts])
    ids = torch.stack([rows.token_ids[prompt.rows[0], :width] for prompt in prompts])
    with arithmetic.mixed():
        layers = decoder.encode(ids.to(device), lengths.to(device))
    computed = [tensor for layer in layers for tensor in layer]
    learns = torch.is_grad_enabled() and computed[0].requires_grad
    # Their graph is kept apart, so that each micro-batch frees its own: what it adds gathers in these leaves.
    leaves = [tensor.detach().requires_grad_(learns) for tensor in computed]
    number = {row: place for place, prompt in enumerate(prompts) for row in prompt.rows}
    begun = rows.select(sorted(number))
    slots = torch.tensor([number[row] for row in sorted(number)])
    for part in partition(begun.lengths - lengths[slots], max(1, token_budget - len(prompts) * width)):
        picked = slots[part]
        own = [leaf[picked.to(device)] for leaf in leaves]
        yield begun.select(part), Prefix(list(zip(own[::2], own[1::2], strict=True)), lengths[picked].to(device))
    if learns:
        pairs = [(whole, leaf.grad) for whole, leaf in zip(computed, leaves, strict=True) if leaf.grad is not None]
        torch.autograd.backward([whole for whole, _ in pairs], [gradient for _, gradient in pairs])
