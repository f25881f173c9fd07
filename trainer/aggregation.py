"""From token losses to one number: the weight of every token, computed once for an optimizer step's whole batch.

The loss is Σ weight · token loss, so any partition into micro-batches or ranks gives the same gradient. `mask` has the
shape [rows, tokens]; rows without action tokens count for nothing. `owner` and `groups` [rows] number the rollout and the
group of a row.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def token_mean(mask: Tensor) -> Tensor:
    """1 / all action tokens (DAPO, arXiv 2503.14476)."""
    return mask / mask.sum().clamp(min=1)


def sequence_mean_token_mean(mask: Tensor) -> Tensor:
    """1 / (rows · the row's action tokens) (GRPO, arXiv 2402.03300)."""
    lengths = mask.sum(1, keepdim=True)
    return mask / lengths.clamp(min=1) / (lengths > 0).sum().clamp(min=1)


def sequence_mean_token_sum(mask: Tensor) -> Tensor:
    """1 / rows."""
    return mask / (mask.sum(1) > 0).sum().clamp(min=1)


def constant_length(mask: Tensor, length: float) -> Tensor:
    """1 / (rows · length), with a constant length in tokens (Dr. GRPO, arXiv 2503.20783)."""
    return sequence_mean_token_sum(mask) / length


def rollout_mean(mask: Tensor, owner: Tensor) -> Tensor:
    """1 / (rollouts · the rollout's action tokens), whichever rows they stand in."""
    lengths = _sum_by(mask.sum(1), owner)
    return mask / lengths.clamp(min=1)[:, None] / _count(owner[mask.sum(1) > 0])


def prompt_mean(mask: Tensor, groups: Tensor) -> Tensor:
    """1 / (prompts · the action tokens of the prompt's rollouts) (ScaleRL, arXiv 2510.13786)."""
    return rollout_mean(mask, groups)


def _sum_by(values: Tensor, keys: Tensor) -> Tensor:
    index = torch.unique(keys, return_inverse=True)[1]
    return values.new_zeros(int(index.max()) + 1).index_add_(0, index, values)[index]


def _count(keys: Tensor) -> int:
    return max(1, len(torch.unique(keys)))


Aggregation = Callable[[Tensor, Tensor, Tensor, float | None], Tensor]


def _constant_length(mask: Tensor, length: float | None) -> Tensor:
    if length is None:
        raise ValueError("the aggregation constant_length needs a length")
    return constant_length(mask, length)


# By name, of (mask, owner, groups, constant length).
AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": lambda mask, owner, groups, length: token_mean(mask),
    "sequence_mean_token_mean": lambda mask, owner, groups, length: sequence_mean_token_mean(mask),
    "sequence_mean_token_sum": lambda mask, owner, groups, length: sequence_mean_token_sum(mask),
    "rollout_mean": lambda mask, owner, groups, length: rollout_mean(mask, owner),
    "prompt_mean": lambda mask, owner, groups, length: prompt_mean(mask, groups),
    "constant_length": lambda mask, owner, groups, length: _constant_length(mask, length),
}
