"""Estimators of the KL divergence to a reference, per token, at tokens sampled from the policy (Schulman 2020)."""

import math

from torch import Tensor

from envhub.trainer.losses import bounded


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """log pi - log ref. Unbiased; as a term of the loss its expected gradient is 0, so it belongs into the reward."""
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """(log pi - log ref)² / 2. Its on-policy gradient is that of KL(pi || ref)."""
    return (logprobs - reference) ** 2 / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log ref - log pi, clamped to ±20. Unbiased and never negative."""
    difference = bounded(reference - logprobs)
    return difference.exp() - difference - 1


def k3_unbiased(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k3 times pi / sg[pi]: the same value, with the gradient of KL(pi || ref) where that of k3 is KL(ref || pi)'s."""
    return k3(logprobs, reference) * (logprobs - logprobs.detach()).exp()


def adapted(coefficient: float, divergence: float, target: float, rollouts: int, horizon: int) -> float:
    """The coefficient after a step whose mean KL was `divergence` (arXiv 1909.08593): its error, cut to ±20 %, moves it.

    A divergence that is not finite tells nothing, and moves nothing.
    """
    if not math.isfinite(divergence):
        return coefficient
    error = max(-0.2, min(0.2, divergence / target - 1))
    return coefficient * (1 + error * rollouts / horizon)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "k3_unbiased": k3_unbiased}
