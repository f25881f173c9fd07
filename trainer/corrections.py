"""Weights that correct for the engine's logprobs differing from the trainer's, per token, detached.

w = pi_old / mu, with mu the behaviour policy (the engine) and pi_old the trainer's policy at the start of the step.
"""

import torch
from torch import Tensor


def importance(old: Tensor, behaviour: Tensor) -> Tensor:
    """w [rows, tokens], the log-ratio clamped to ±20."""
    return (old - behaviour).clamp(-20, 20).exp().detach()


def truncated(weights: Tensor, cap: float = 2.0) -> Tensor:
    """min(w, cap): truncated importance sampling (TIS)."""
    return weights.clamp(max=cap)


def icepop(weights: Tensor, low: float = 0.5, high: float = 2.0) -> Tensor:
    """w where low <= w <= high, else 0."""
    return torch.where((weights >= low) & (weights <= high), weights, torch.zeros_like(weights))


def sequence_log_weight(old: Tensor, behaviour: Tensor, mask: Tensor, *, mean: bool = False) -> Tensor:
    """Σ (or the mean of) log w over a row's action tokens, [rows, 1], detached, clamped to ±20."""
    total = torch.where(mask.bool(), old - behaviour, 0.0).sum(1, keepdim=True)
    if mean:
        total = total / mask.sum(1, keepdim=True).clamp(min=1)
    return total.clamp(-20, 20).detach()


def sequence_truncated(old: Tensor, behaviour: Tensor, mask: Tensor, cap: float = 2.0) -> Tensor:
    """min(Πw, cap) of the row at each of its tokens: sequence-level truncated importance sampling."""
    return sequence_log_weight(old, behaviour, mask).exp().clamp(max=cap).expand_as(mask)


def sequence_masked(old: Tensor, behaviour: Tensor, mask: Tensor, low: float = 0.99, high: float = 1.01) -> Tensor:
    """w of each token where the row's geometric mean of w lies in [low, high], else 0: its bounds need no length."""
    geometric = sequence_log_weight(old, behaviour, mask, mean=True).exp()
    return torch.where((geometric >= low) & (geometric <= high), importance(old, behaviour), 0.0)


def effective_sample_size(weights: Tensor, mask: Tensor) -> Tensor:
    """(Σw)² / (n·Σw²) over the masked tokens; 1 when all weights are equal."""
    chosen = weights[mask.bool()]
    return chosen.sum() ** 2 / (chosen.numel() * (chosen**2).sum()).clamp(min=1e-12)
