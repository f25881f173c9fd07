"""Advantage estimators: pure functions of rewards and groups.

`rewards` and `groups` have shape [rollouts]; rollouts with equal group numbers answered the same task. A group of one
has nothing to be compared with: its advantage is 0.
"""

import torch
from torch import Tensor

_BLOCK = 16_384  # rows that go through a loop over tokens together: in larger tensors threads wait for each other at every token


def group_sum(values: Tensor, groups: Tensor) -> Tensor:
    """For each rollout the sum of `values` over its group, [rollouts]."""
    if not len(values):
        return values
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


def opo(rewards: Tensor, groups: Tensor, lengths: Tensor) -> Tensor:
    """r - Σ len·r / Σ len over the group, with `lengths` [rollouts] in action tokens (OPO, arXiv 2505.23585)."""
    weights = lengths.to(rewards.dtype)
    total = group_sum(weights, groups)
    baseline = group_sum(weights * rewards, groups) / total.clamp(min=1)
    return torch.where((total > 0) & (group_size(groups) > 1), rewards - baseline, torch.zeros_like(rewards))


def at_last_action(values: Tensor, mask: Tensor) -> Tensor:
    """`values` [rows] placed at each row's last action token, [rows, tokens]; nowhere in a row without any."""
    mask = mask.bool()
    out = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    last = mask.shape[1] - 1 - mask.flip(1).byte().argmax(1, keepdim=True)
    return out.scatter_(1, last, (values * mask.any(1))[:, None])


def at_last_of_turns(values: Tensor, turns: Tensor, mask: Tensor) -> Tensor:
    """`values` [rows, turns] each at the last action token of its turn, [rows, tokens].

    What belongs to turns that stand in no later place of the row (in another row of a forked rollout, or without any
    token) is added at the row's last action token before it.
    """
    out = torch.zeros(mask.shape, dtype=values.dtype)
    for row in range(len(mask)):
        at = mask[row].bool().nonzero()[:, 0]
        if not len(at):
            continue
        own = turns[row, at]
        ends = torch.cat([own[1:] != own[:-1], torch.ones(1, dtype=torch.bool)])
        number = torch.searchsorted(own[ends], torch.arange(values.shape[1]), right=True) - 1
        before = number >= 0
        out[row].index_put_((at[ends][number[before]],), values[row, before], accumulate=True)
    return out


def returns(token_rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Reward-to-go G_t = r_t + gamma·G_next over action tokens only (REINFORCE++, arXiv 2501.03262); 0 elsewhere.

    Observation tokens are passed over: they neither reset nor discount, so inserting them changes nothing.
    """
    if gamma == 1.0:
        return (token_rewards * mask).flip(1).cumsum_(1).flip(1).mul_(mask)
    return gae(token_rewards, torch.zeros_like(token_rewards), mask, gamma, 1.0)


def gae(token_rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 1.0) -> Tensor:
    """Generalised advantage estimates (arXiv 1506.02438) over action tokens only, [rows, tokens]; 0 elsewhere.

    delta_t = r_t + gamma·V_next - V_t, A_t = delta_t + gamma·lam·A_next, where next is the row's next action token. The
    critic's targets are A + V, of these unwhitened A.
    """
    if gamma == lam == 1.0:
        return returns(token_rewards, mask).addcmul_(values, mask, value=-1)
    blocks = [slice(start, start + _BLOCK) for start in range(0, max(1, len(mask)), _BLOCK)]
    return torch.cat([_gae(token_rewards[rows], values[rows], mask[rows].bool(), gamma, lam) for rows in blocks])


def _gae(token_rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    # By columns, so that each step reads and writes what stands together.
    own, estimates, chosen = (tensor.t().contiguous() for tensor in (token_rewards - values, gamma * values, mask))
    out = torch.empty_like(own)
    later = own.new_zeros(len(mask))  # gamma·V_next + gamma·lam·A_next
    for at in reversed(range(len(own))):
        torch.add(own[at], later, out=out[at])
        later = torch.where(chosen[at], estimates[at].add(out[at], alpha=gamma * lam), later)
    return torch.where(chosen, out, 0.0).t().contiguous()


def whiten_tokens(advantages: Tensor, mask: Tensor, epsilon: float = 1e-8, *, unbiased: bool = False) -> Tensor:
    """(A - mean) / std over all action tokens of the batch; 0 elsewhere. The variance is the population's, or `unbiased`.

    `advantages` and `mask` [rows, tokens]. Mean and variance weigh tokens, so long rollouts weigh more (REINFORCE++,
    arXiv 2501.03262). All-equal advantages become 0.
    """
    mask = mask.to(advantages.dtype)
    count = mask.sum().clamp(min=1)
    out = advantages * mask
    out.addcmul_(mask, -out.sum() / count)
    variance = torch.linalg.vector_norm(out).square() / ((count - 1).clamp(min=1) if unbiased else count)
    return out.mul_(variance.clamp(min=epsilon).rsqrt())
