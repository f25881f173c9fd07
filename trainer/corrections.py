"""Weights that correct for the engine's logprobs differing from the trainer's, per token, detached.

w = pi_old / mu, with mu the behaviour policy (the engine) and pi_old the trainer's policy at the start of the step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from envhub.trainer.kl import k3
from envhub.trainer.losses import bounded, ratio


def importance(old: Tensor, behaviour: Tensor) -> Tensor:
    """w [rows, tokens], the log-ratio clamped to ±20."""
    return ratio(old, behaviour).detach()


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
    return bounded(total).detach()


def sequence_truncated(old: Tensor, behaviour: Tensor, mask: Tensor, cap: float = 2.0) -> Tensor:
    """min(Πw, cap) of the row at each of its tokens: sequence-level truncated importance sampling."""
    return sequence_log_weight(old, behaviour, mask).exp().clamp(max=cap).expand_as(mask)


def sequence_masked(old: Tensor, behaviour: Tensor, mask: Tensor, low: float = 0.99, high: float = 1.01) -> Tensor:
    """w of each token where the row's geometric mean of w lies in [low, high], else 0: its bounds need no length."""
    geometric = sequence_log_weight(old, behaviour, mask, mean=True).exp()
    return torch.where((geometric >= low) & (geometric <= high), importance(old, behaviour), 0.0)


def sequence_bounded(old: Tensor, behaviour: Tensor, mask: Tensor, high: float = 3.0) -> Tensor:
    """Πw of the row at each of its tokens where it is at most `high`, else 0: sequence-level masked importance sampling."""
    product = sequence_log_weight(old, behaviour, mask).exp()
    return torch.where(product <= high, product, 0.0).expand_as(mask)


def k3_masked(old: Tensor, behaviour: Tensor, mask: Tensor, high: float = 0.01) -> Tensor:
    """w of each token where the mean over the row of k3, the estimate of KL(mu || pi_old), is at most `high`, else 0."""
    divergence = torch.where(mask.bool(), k3(behaviour, old), 0.0).detach()
    mean = divergence.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return torch.where(mean <= high, importance(old, behaviour), 0.0)


def opsm(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor, high: float = 0.1) -> Tensor:
    """0 where A < 0 and the row's mean of log mu - log pi is above `high`, else 1.

    Off-policy sequence masking (DeepSeek-V3.2, equation 9): bad answers that the policy has left behind teach nothing.
    """
    left = -sequence_log_weight(logprobs, behaviour, mask, mean=True)
    return torch.where((advantages < 0) & (left > high), 0.0, torch.ones_like(mask))


@dataclass(frozen=True, slots=True)
class Step:
    """What a correction may look at, all [rows, tokens]: log pi, log pi_old, log mu, advantages, and the action mask."""

    logprobs: Tensor
    old: Tensor
    behaviour: Tensor
    advantages: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction by its weights, of (step, low, high), and its usual bounds; a bound of None is one that it has not.

    `weigh` None leaves the loss as it is. With `bypass` the loss's pi_old is mu.
    """

    weigh: Callable[[Step, float, float], Tensor] | None = None
    low: float | None = None
    high: float | None = None
    bypass: bool = False


CORRECTIONS: dict[str, Correction] = {
    "none": Correction(),
    "tis": Correction(lambda s, low, high: truncated(importance(s.old, s.behaviour), high), high=2.0),
    "mis": Correction(lambda s, low, high: icepop(importance(s.old, s.behaviour), 0.0, high), high=2.0),
    "icepop": Correction(lambda s, low, high: icepop(importance(s.old, s.behaviour), low, high), low=0.5, high=2.0),
    "sequence_tis": Correction(lambda s, low, high: sequence_truncated(s.old, s.behaviour, s.mask, high), high=2.0),
    "sequence_mis": Correction(lambda s, low, high: sequence_bounded(s.old, s.behaviour, s.mask, high), high=3.0),
    "sequence_mask": Correction(
        lambda s, low, high: sequence_masked(s.old, s.behaviour, s.mask, low, high), low=0.99, high=1.01
    ),
    "k3_mask": Correction(lambda s, low, high: k3_masked(s.old, s.behaviour, s.mask, high), high=0.01),
    "opsm": Correction(lambda s, low, high: opsm(s.logprobs, s.behaviour, s.advantages, s.mask, high), high=0.1),
    "bypass": Correction(bypass=True),
}


def effective_sample_size(weights: Tensor, mask: Tensor) -> float:
    """(Σw)² / (n·Σw²) over the masked tokens; 1 when all weights are equal."""
    chosen = weights[mask.bool()]
    return effective_share(float(chosen.sum()), float((chosen**2).sum()), chosen.numel())


def effective_share(total: float, squares: float, count: float) -> float:
    """The same from Σw, Σw² and n; 1 where there is no weight."""
    return total**2 / (count * squares) if squares else 1.0
