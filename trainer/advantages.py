"""Advantage estimators: pure functions of rewards and groups.

`rewards` and `groups` have shape [rollouts]; rollouts with equal group numbers answered the same task. A group of one
has nothing to be compared with: its advantage is 0.
"""

import torch
from torch import Tensor


def group_sum(values: Tensor, groups: Tensor) -> Tensor:
    """For each rollout the sum of `values` over its group, [rollouts]."""
    index = torch.unique(groups, return_inverse=True)[1]
    sums = torch.zeros(int(index.max()) + 1, dtype=values.dtype, device=values.device).index_add_(0, index, values)
    return sums[index]


def group_size(groups: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """For each rollout the size of its group, [rollouts]."""
    return group_sum(torch.ones(groups.shape, dtype=dtype, device=groups.device), groups)


def centred(rewards: Tensor, groups: Tensor) -> Tensor:
    """r - mean of the group (Dr. GRPO, arXiv 2503.20783; the first step of REINFORCE++-baseline, arXiv 2501.03262)."""
    return rewards - group_sum(rewards, groups) / group_size(groups, rewards.dtype)


def grpo(rewards: Tensor, groups: Tensor, epsilon: float = 1e-6) -> Tensor:
    """(r - mean) / (std + epsilon), with the group's unbiased standard deviation (GRPO, arXiv 2402.03300)."""
    difference, size = centred(rewards, groups), group_size(groups, rewards.dtype)
    variance = group_sum(difference**2, groups) / (size - 1).clamp(min=1)
    return torch.where(size > 1, difference / (variance.sqrt() + epsilon), torch.zeros_like(rewards))


def rloo(rewards: Tensor, groups: Tensor) -> Tensor:
    """r - mean of the others in the group, which is n/(n-1) times `centred` (RLOO, arXiv 2402.14740)."""
    size = group_size(groups, rewards.dtype)
    return torch.where(size > 1, centred(rewards, groups) * size / (size - 1).clamp(min=1), torch.zeros_like(rewards))


def whiten_tokens(advantages: Tensor, mask: Tensor, epsilon: float = 1e-8, *, centre: bool = True) -> Tensor:
    """(A - mean) / std over all action tokens of the batch, population variance; 0 elsewhere.

    `advantages` and `mask` [rows, tokens]. Mean and variance weigh tokens, so long rollouts weigh more (REINFORCE++,
    arXiv 2501.03262). All-equal advantages become 0.
    """
    mask = mask.to(advantages.dtype)
    count = mask.sum().clamp(min=1)
    mean = (advantages * mask).sum() / count if centre else advantages.new_zeros(())
    variance = ((advantages - mean) ** 2 * mask).sum() / count
    return (advantages - mean) * variance.clamp(min=epsilon).rsqrt() * mask
