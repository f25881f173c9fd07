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


def effective_sample_size(weights: Tensor, mask: Tensor) -> Tensor:
    """(Σw)² / (n·Σw²) over the masked tokens; 1 when all weights are equal."""
    chosen = weights[mask.bool()]
    return chosen.sum() ** 2 / (chosen.numel() * (chosen**2).sum()).clamp(min=1e-12)
