"""Policy losses, per token: pure functions of logprobs and advantages, to be minimised."""

from torch import Tensor

MOST_LOG_RATIO = 20.0


def ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """exp(log pi - log pi_old), in float32 or better, the log-ratio clamped to ±20."""
    return (logprobs - old).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()


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


def clipped(logprobs: Tensor, old: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Where the clip binds, as 0 or 1 [rows, tokens]: A > 0 with rho above it, or A < 0 with rho below it."""
    rho = ratio(logprobs.detach(), old)
    above, below = (advantages > 0) & (rho > 1 + clip_high), (advantages < 0) & (rho < 1 - clip_low)
    return (above | below).to(logprobs.dtype)
