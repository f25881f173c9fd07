"""From groups of rollouts to rows of tokens with advantages, and to micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from envhub.rollout import Rollout
from envhub.tasks import Task
from envhub.trainer import advantages
from envhub.trainer.algorithms import Algorithm
from envhub.trajectory import SAMPLED, Segment


@dataclass(slots=True)
class Rows:
    """The rows of an optimizer step, padded at the right to [rows, tokens].

    `mask` marks action tokens, `behaviour` holds the engine's logprobs there, `turns` the model's turn; `advantages`,
    `weights` (of the loss) and, where there is a critic, its `values` and their targets `returns` are 0 elsewhere.
    `lengths` [rows] counts real tokens, `owner` [rows] is the rollout's position, `groups` [rows] the number of its
    group; `rollout_groups` [rollouts] has those of all rollouts.
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
    turns: Tensor
    values: Tensor
    returns: Tensor

    @classmethod
    def bare(
        cls,
        token_ids: Tensor,
        mask: Tensor,
        behaviour: Tensor,
        lengths: Tensor,
        *,
        owner: Tensor | None = None,
        rollout_groups: Tensor | None = None,
        turns: Tensor | None = None,
    ) -> "Rows":
        """Rows without advantages, weights and values. By default each is a rollout and a group of its own, of one turn."""
        owner = torch.arange(len(token_ids)) if owner is None else owner
        rollout_groups = owner if rollout_groups is None else rollout_groups
        # what is given no values takes no memory: it is replaced and never written to
        empty = torch.zeros(1, 1).expand_as(mask)
        return cls(
            token_ids, mask, behaviour, advantages=empty, weights=empty, lengths=lengths, owner=owner,
            groups=rollout_groups[owner], rollout_groups=rollout_groups,
            turns=torch.zeros(1, 1, dtype=torch.long).expand_as(token_ids) if turns is None else turns, values=empty, returns=empty,
        )  # fmt: skip

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
        changed = {name: _picked(getattr(self, name), index, width) for name in _BY_TOKEN}
        return replace(self, **changed, **{name: getattr(self, name)[index] for name in ("lengths", "owner", "groups")})


def _picked(tensor: Tensor, index: Tensor, width: int) -> Tensor:
    if tensor.stride() == (0, 0):  # one value for all
        return tensor[:1, :1].expand(len(index), width)
    return tensor[:, :width].index_select(0, index)


_BY_TOKEN = ("token_ids", "mask", "behaviour", "advantages", "weights", "turns", "values", "returns")


def build_rows(rollouts: Sequence[Rollout], algorithm: Algorithm) -> Rows:
    """The training rows of scored rollouts, with advantages and weights.

    Raises ValueError when no rollout has an action token, and for a group of different tasks.
    """
    rows = token_rows(rollouts)
    assign(rows, torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32), algorithm)
    return rows


def token_rows(rollouts: Sequence[Rollout]) -> Rows:
    """The tokens of rollouts; advantages and weights are 0 until `assign` sets them.

    Raises ValueError when no rollout has an action token, and for a group of different tasks.
    """
    segments, is_trained, owners, sizes = list[Segment](), list[bool](), list[int](), list[int]()
    for owner, rollout in enumerate(rollouts):  # into flat lists: many small ones would set off the garbage collector
        for path in rollout.trajectory.trained_paths():
            owners.append(owner)
            sizes.append(len(path))
            for segment, trained in path:
                segments.append(segment)
                is_trained.append(trained)
    if not owners:
        raise ValueError("no rollout has a token to train on")
    sampled = np.array([segment.origin == SAMPLED for segment in segments])
    counts = np.array([len(segment.token_ids) for segment in segments])
    ids = np.frombuffer(b"".join([segment.packed_ids for segment in segments]), np.intc)
    trains = np.repeat(np.array(is_trained, np.float32), counts)
    turn_of = np.array([segment.turn for segment in segments]) * sampled
    behaviour = np.zeros(len(ids), np.float32)
    behaviour[np.repeat(sampled, counts)] = np.frombuffer(
        b"".join([segment.packed_logprobs for segment in segments]), np.float32
    )
    ends = np.cumsum(counts)[np.cumsum(sizes) - 1]
    lengths = np.diff(ends, prepend=0)
    there = np.arange(int(lengths.max())) < lengths[:, None]
    token_ids, mask, logprobs = _padded(ids, there, np.int64), _padded(trains, there), _padded(behaviour, there)
    turns = _padded(np.repeat(turn_of, counts), there) if turn_of.any() else None
    return Rows.bare(
        token_ids, mask, logprobs, torch.from_numpy(lengths), owner=torch.tensor(owners), rollout_groups=_group_numbers(rollouts),
        turns=turns,
    )  # fmt: skip


def _padded(values: np.ndarray, there: np.ndarray, dtype: DTypeLike = None) -> Tensor:
    """`values` in their order where `there` is, 0 elsewhere."""
    out = np.zeros(there.shape, dtype or values.dtype)
    out[there] = values
    return torch.from_numpy(out)


def assign(rows: Rows, rewards: Tensor, algorithm: Algorithm, divergence: Tensor | None = None) -> None:
    """Set advantages, weights and, with a critic, its targets.

    `rewards` is [rollouts], or [rollouts, turns] where the algorithm credits turns. The estimator works on rollouts (or
    on turns, each compared with the same turn of its group's other rollouts); discount, KL penalty, the critic's
    estimates from `rows.values`, and whitening work on tokens. `divergence` [rows, tokens] is the k1 estimate to the
    reference at the start of the step, where the algorithm takes it from the reward of each token.
    """
    penalty = None if divergence is None else algorithm.kl_coef * divergence * rows.mask
    if algorithm.credit == "turn":
        found = _by_turn(rows, rewards, algorithm, penalty)
    else:
        found = _by_episode(rows, rewards, algorithm, penalty)
    if algorithm.critic:
        rows.returns = torch.addcmul(found, rows.values, rows.mask)
    rows.advantages = advantages.whiten_tokens(found, rows.mask) if algorithm.whiten else found
    rows.weights = algorithm.weights(rows.mask, rows.owner, rows.groups)


def _by_episode(rows: Rows, rewards: Tensor, algorithm: Algorithm, penalty: Tensor | None) -> Tensor:
    lengths = torch.zeros(len(rewards)).index_add_(0, rows.owner, rows.mask.sum(1))
    by_row = algorithm.estimator(rewards, rows.rollout_groups, lengths)[rows.owner]
    if penalty is None and algorithm.gamma == 1.0 and (algorithm.lam == 1.0 or not algorithm.critic):
        # What follows would come to the same.
        return by_row[:, None] * rows.mask if not algorithm.critic else (by_row[:, None] - rows.values).mul_(rows.mask)
    token_rewards = _less(advantages.at_last_action(by_row, rows.mask), penalty)
    if algorithm.critic:
        return advantages.gae(token_rewards, rows.values, rows.mask, algorithm.gamma, algorithm.lam)
    return advantages.returns(token_rewards, rows.mask, algorithm.gamma)


def _by_turn(rows: Rows, rewards: Tensor, algorithm: Algorithm, penalty: Tensor | None) -> Tensor:
    mask = rows.mask.bool()
    shape = len(rewards), max(rewards.shape[1], int(rows.turns.max()) + 1)
    padded = torch.zeros(shape)
    padded[:, : rewards.shape[1]] = rewards
    if algorithm.critic:
        token_rewards = _less(advantages.at_last_of_turns(padded[rows.owner], rows.turns, rows.mask), penalty)
        return advantages.gae(token_rewards, rows.values, rows.mask, algorithm.gamma, algorithm.lam)
    to_go = advantages.returns(padded, torch.ones(shape), algorithm.turn_gamma)
    lengths = torch.zeros(shape)
    lengths.index_put_(
        (rows.owner[:, None].expand_as(rows.turns)[mask], rows.turns[mask]), torch.ones(()), accumulate=True
    )
    there = lengths > 0
    places = rows.rollout_groups[:, None] * shape[1] + torch.arange(shape[1])
    table = torch.zeros(shape)
    table[there] = algorithm.estimator(to_go[there], places[there], lengths[there])
    found = table[rows.owner[:, None], rows.turns] * rows.mask
    return found if penalty is None else found + advantages.returns(-penalty, rows.mask, algorithm.gamma)


def _less(values: Tensor, penalty: Tensor | None) -> Tensor:
    return values if penalty is None else values - penalty


def _group_numbers(rollouts: Sequence[Rollout]) -> Tensor:
    """The number of each rollout's group, [rollouts]. Raises ValueError for a group of different tasks."""
    found, firsts, numbers = dict[str, int](), list[Task](), list[int]()
    for rollout in rollouts:
        task = rollout.task
        number = found.setdefault(rollout.group, len(found))
        if number == len(firsts):
            firsts.append(task)
        first = firsts[number]
        if first is not task and (task.id, task.index, task.seed) != (first.id, first.index, first.seed):
            raise ValueError(
                f"the rollouts of group {rollout.group!r} have different tasks ({first.id!r} and {task.id!r}), so their "
                "rewards cannot be compared; name a group for each task"
            )
        numbers.append(number)
    return torch.tensor(numbers)


def partition(lengths: Tensor, token_budget: int) -> list[list[int]]:
    """The numbers of rows of these `lengths` [rows] in parts: similar lengths together, each part with padding at most
    `token_budget` tokens (or one row), in as few parts as the budget allows and those as even as they can be."""
    order = torch.argsort(lengths, descending=True, stable=True).tolist()
    ordered = lengths[order].tolist()

    def cut(budget: int) -> list[int]:
        starts, at = [], 0
        while at < len(ordered):
            starts.append(at)
            at += max(1, budget // max(1, ordered[at]))
        return starts

    low, high = 1, max(1, token_budget)
    least = len(cut(high))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cut(middle)) == least else (middle + 1, high)
    starts = cut(high)
    return [order[start:end] for start, end in pairwise([*starts, len(order)])]


def micro_batches(rows: Rows, token_budget: int) -> Iterator[Rows]:
    """The parts of `partition`, each cut to its longest row."""
    for part in partition(rows.lengths, token_budget):
        yield rows.select(part)


def split(rows: Rows, parts: int, algorithm: Algorithm, generator: torch.Generator) -> list[Rows]:
    """Shuffle the rows into `parts` batches for as many optimizer steps, each with the loss weights of its own rows.

    Where the number of rows does not divide, some have one row more.
    """
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
