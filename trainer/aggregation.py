"""From token losses to one number: the weight of every token, computed once for an optimizer step's whole batch.

The loss is Σ weight · token loss, so any partition into micro-batches or ranks gives the same gradient. `mask` has the
shape [rows, tokens]; rows without action tokens count for nothing.
"""

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


AGGREGATIONS = {
    "token_mean": token_mean,
    "sequence_mean_token_mean": sequence_mean_token_mean,
    "sequence_mean_token_sum": sequence_mean_token_sum,
}
