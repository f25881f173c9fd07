"""From groups of rollouts to rows of tokens with advantages, and to micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from envhub.rollout import Rollout
from envhub.trainer import advantages
from envhub.trainer.algorithms import Algorithm
from envhub.trajectory import Sample


@dataclass(slots=True)
class Rows:
    """The rows of an optimizer step, padded at the right to [rows, tokens].

    `mask` marks action tokens, `behaviour` holds the engine's logprobs there, `advantages` and `weights` (of the loss)
    are 0 elsewhere. `lengths` [rows] counts real tokens, `owner` [rows] is the rollout's position, `groups` [rows] the
    number of its group; `rollout_groups` [rollouts] has those of all rollouts.
    """

    token_ids: Tensor
    mask: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    lengths: Tensor
    owner: Tensor
    groups: Tensor
    rollout_groups: Tensor

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def action_tokens(self) -> int:
        """How many tokens are trained."""
        return int(self.mask.sum())

    def numbered(self) -> "Rows":
        """The same rows, each its own owner: for finding the rows of a micro-batch again."""
        return replace(self, owner=torch.arange(len(self)))

    def select(self, rows: Sequence[int]) -> "Rows":
        """Some rows, cut to the longest of them."""
        index = torch.tensor(list(rows), dtype=torch.long)
        width = int(self.lengths[index].max())
        return Rows(
            self.token_ids[index, :width], self.mask[index, :width], self.behaviour[index, :width],
            self.advantages[index, :width], self.weights[index, :width], self.lengths[index], self.owner[index],
            self.groups[index], self.rollout_groups,
        )  # fmt: skip


def build_rows(rollouts: Sequence[Rollout], algorithm: Algorithm) -> Rows:
    """The training rows of scored rollouts, with advantages and weights.

    Raises ValueError when no rollout has an action token.
    """
    rows = token_rows(rollouts)
    assign(rows, torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32), algorithm)
    return rows


def token_rows(rollouts: Sequence[Rollout]) -> Rows:
    """The tokens of rollouts; advantages and weights are 0 until `assign` sets them.

    Raises ValueError when no rollout has an action token.
    """
    samples: list[tuple[int, Sample]] = [
        (owner, sample) for owner, rollout in enumerate(rollouts) for sample in rollout.trajectory.samples()
    ]
    if not samples:
        raise ValueError("no rollout has a token to train on")
    width = max(len(sample.token_ids) for _, sample in samples)
    token_ids = torch.zeros(len(samples), width, dtype=torch.long)
    mask, behaviour = torch.zeros(len(samples), width), torch.zeros(len(samples), width)
    for row, (_, sample) in enumerate(samples):
        count = len(sample.token_ids)
        token_ids[row, :count] = torch.tensor(sample.token_ids)
        mask[row, :count] = torch.tensor(sample.mask, dtype=torch.float32)
        behaviour[row, :count] = torch.tensor(sample.logprobs)
    owner = torch.tensor([owner for owner, _ in samples])
    lengths = torch.tensor([len(sample.token_ids) for _, sample in samples])
    empty = torch.zeros_like(mask)
    groups = _group_numbers(rollouts)
    return Rows(token_ids, mask, behaviour, empty, empty, lengths, owner, groups[owner], groups)


def assign(rows: Rows, rewards: Tensor, algorithm: Algorithm, divergence: Tensor | None = None) -> None:
    """Set advantages and weights: estimator over rollouts, then discount, KL penalty and whitening over tokens.

    `rewards` [rollouts]; `divergence` [rows, tokens] is the k1 estimate to the reference at the start of the step, where
    the algorithm takes it from the reward of each token.
    """
    mask = rows.mask
    lengths = torch.zeros(len(rewards)).index_add_(0, rows.owner, mask.sum(1))
    per_rollout = algorithm.estimator(rewards, rows.rollout_groups, lengths)
    token_rewards = advantages.at_last_action(per_rollout[rows.owner], mask)
    if divergence is not None:
        token_rewards = token_rewards - algorithm.kl_coef * divergence * mask
    values = advantages.returns(token_rewards, mask, algorithm.gamma)
    rows.advantages = advantages.whiten_tokens(values, mask) if algorithm.whiten else values
    rows.weights = algorithm.weights(mask, rows.owner, rows.groups)


def _group_numbers(rollouts: Sequence[Rollout]) -> Tensor:
    """The number of each rollout's group, [rollouts]."""
    names = {group: number for number, group in enumerate(dict.fromkeys(rollout.group for rollout in rollouts))}
    return torch.tensor([names[rollout.group] for rollout in rollouts])


def micro_batches(rows: Rows, token_budget: int) -> Iterator[Rows]:
    """Rows of similar length together, each micro-batch of at most `token_budget` tokens with padding (or one row)."""
    order = torch.argsort(rows.lengths, descending=True).tolist()
    lengths = rows.lengths.tolist()
    while order:
        count = max(1, token_budget // lengths[order[0]])
        yield rows.select(order[:count])
        order = order[count:]


def split(rows: Rows, parts: int, algorithm: Algorithm, generator: torch.Generator) -> list[Rows]:
    """Shuffle the rows into `parts` batches for as many optimizer steps, each with the loss weights of its own rows."""
    if parts == 1:
        return [rows]
    order = torch.randperm(len(rows), generator=generator).tolist()
    out = []
    for part in range(parts):
        chosen = order[part::parts]
        if chosen:
            picked = rows.select(chosen)
            picked.weights = algorithm.weights(picked.mask, picked.owner, picked.groups)
            out.append(picked)
    return out
