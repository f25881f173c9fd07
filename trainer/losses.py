"""Policy losses, per token: pure functions of logprobs and advantages, to be minimised.

All shapes are [rows, tokens]; `mask` marks action tokens. A loss of whole sequences (GSPO, GMPO) stands at every action
token of its row, so that the mean over the row's tokens is the row's loss.
"""

import torch
from torch import Tensor

MOST_LOG_RATIO = 20.0
BOUNDS = ("clip_low", "clip_high", "dual_clip")


def bounded(log_ratio: Tensor) -> Tensor:
    """A difference of logprobs, clamped to ±20, so that its exp is finite."""
    return log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)


def ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """exp(log pi - log pi_old), in float32 or better, the log-ratio clamped to ±20."""
    return bounded(logprobs - old).exp()


def ppo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """max(-A·rho, -A·clip(rho, 1-low, 1+high)), all shapes [rows, tokens] (PPO, arXiv 1707.06347).

    Different bounds are DAPO's clip-higher (arXiv 2503.14476). `dual_clip` c > 1 bounds the loss of negative advantages
    to c·|A| (arXiv 1912.09729).
    """
    rho = ratio(logprobs, old)
    loss = (-advantages * rho).maximum(-advantages * rho.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return loss.where(advantages >= 0, loss.minimum(-advantages * dual_clip))


def sequence_log_ratio(logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """The mean of log pi - log pi_old over a row's action tokens, [rows, 1]; 0 for a row without any."""
    differences = torch.where(mask.bool(), logprobs - old, 0.0)
    return differences.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def gspo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float = 3e-4, clip_high: float = 4e-4
) -> Tensor:
    """PPO's clipped loss with the geometric mean of the row's ratios in place of each token's (GSPO, arXiv 2507.18071).

    For use with `sequence_mean_token_mean`.
    """
    log_ratio = sequence_log_ratio(logprobs, old, mask)
    return ppo(log_ratio, torch.zeros_like(log_ratio), advantages, clip_low, clip_high)


def gmpo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float = 0.4, clip_high: float = 0.4
) -> Tensor:
    """-A times the geometric mean of the row's ratios, their logs clipped to [-low, high] on the side that pays.

    GMPO, arXiv 2507.20673; for use with `sequence_mean_token_mean` and advantages that are equal in a row.
    """
    difference = logprobs - old
    sign = advantages.sign()
    pessimistic = sign * (sign * difference).minimum(sign * difference.clamp(-clip_low, clip_high))
    return -advantages * ratio(sequence_log_ratio(pessimistic, torch.zeros_like(old), mask), torch.zeros_like(old))


def cispo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, clip_low: float | None = 0.2, clip_high: float = 0.28
) -> Tensor:
    """-sg[clip(rho, 1-low, 1+high)]·A·log pi (CISPO, arXiv 2506.13585): no token is dropped. `clip_low` None: no lower bound."""
    rho = ratio(logprobs.detach(), old)
    weight = rho.clamp(min=None if clip_low is None else 1 - clip_low, max=1 + clip_high)
    return -weight * advantages * logprobs


def sapo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, tau_positive: float = 1.0, tau_negative: float = 1.05
) -> Tensor:
    """-A·(4/tau)·sigmoid(tau·(rho - 1)), a soft gate (SAPO, arXiv 2511.20347); tau by the sign of A.

    On policy its gradient is REINFORCE's; its value there is -2A/tau.
    """
    tau = torch.where(advantages > 0, tau_positive, tau_negative).to(logprobs.dtype)
    return -advantages * 4 / tau * torch.sigmoid(tau * (ratio(logprobs, old) - 1))


def value(values: Tensor, old: Tensor, returns: Tensor, clip: float | None = 0.2) -> Tensor:
    """max((V - R)², (clip(V, V_old ± clip) - R)²) / 2: the critic's loss, in which clipping only ever raises it."""
    loss = (values - returns) ** 2
    if clip is not None:
        loss = loss.maximum((old + (values - old).clamp(-clip, clip) - returns) ** 2)
    return loss / 2


def clipped(logprobs: Tensor, old: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Where the clip binds, as 0 or 1 [rows, tokens]: A > 0 with rho above it, or A < 0 with rho below it."""
    rho = ratio(logprobs.detach(), old)
    above, below = (advantages > 0) & (rho > 1 + clip_high), (advantages < 0) & (rho < 1 - clip_low)
    return (above | below).to(logprobs.dtype)
