"""What is trained: samples of token records, in batches whose order is decided by a seed."""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envhub.errors import UserError
from envhub.tasks import hashed_seed
from envhub.trainer.algorithms import SFT
from envhub.trainer.batch import Rows
from envhub.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Example:
    """One sample: `token_ids` and `mask` (which tokens are trained), both [tokens]; `key` says what it was made of."""

    token_ids: Tensor
    mask: Tensor
    key: str

    @property
    def trained(self) -> int:
        """How many tokens are trained."""
        return int(self.mask.sum())


@dataclass(slots=True)
class Examples:
    """Samples of at most `max_tokens` tokens; `cut` counts those that were longer, `dropped` those that had to go."""

    max_tokens: int
    items: list[Example] = field(default_factory=list)
    cut: int = 0
    dropped: int = 0

    def add(self, trajectory: Trajectory, key: str) -> None:
        """Take the samples of a record. Samples of the same key are held out together."""
        for sample in trajectory.samples():
            ids = torch.tensor(sample.token_ids[: self.max_tokens], dtype=torch.int32)
            mask = torch.tensor(sample.mask[: self.max_tokens], dtype=torch.bool)
            mask[0] = False  # it follows nothing
            longer = len(sample.token_ids) > self.max_tokens
            if not mask.any():
                self.dropped += 1
                continue
            self.cut += longer
            self.items.append(Example(ids, mask, key))

    def refuse_none(self) -> None:
        """Raise UserError where every sample had to go."""
        if not self.items:
            raise UserError(f"all {self.dropped} samples have no trained token within max_tokens {self.max_tokens}")


def hold_out(examples: Sequence[Example], fraction: float, seed: int) -> tuple[list[Example], list[Example]]:
    """The examples to train and those to hold out: the share `fraction` of the keys, rounded up.

    Raises UserError where nothing would be left to train.
    """
    keys = sorted({example.key for example in examples})
    random.Random(hashed_seed("held out", seed)).shuffle(keys)
    held = set(keys[: math.ceil(fraction * len(keys))])
    if len(held) == len(keys):
        raise UserError(f"holding out {fraction:g} of {len(keys)} leaves nothing to train on; lower --eval-fraction")
    return [e for e in examples if e.key not in held], [e for e in examples if e.key in held]


class Batches:
    """The batch of every optimizer step: each epoch sees all examples once, in an order of the seed's."""

    def __init__(self, examples: Sequence[Example], size: int, seed: int) -> None:
        self.examples, self.size, self.seed = examples, size, seed
        self._order: tuple[int, list[int]] = (-1, [])

    def digest(self) -> str:
        """The same for the same samples in the same batches."""
        found = hashlib.sha256(f"{self.size} {self.seed}".encode())
        for example in self.examples:
            found.update(len(example.token_ids).to_bytes(8, "little"))
            found.update(example.token_ids.numpy().tobytes() + example.mask.numpy().tobytes())
        return found.hexdigest()

    @property
    def an_epoch(self) -> int:
        """Optimizer steps of an epoch; its last batch may be smaller."""
        return math.ceil(len(self.examples) / self.size)

    def at(self, step: int) -> list[Example]:
        """The batch of a step, counted from 0."""
        epoch, number = divmod(step, self.an_epoch)
        if self._order[0] != epoch:
            order = list(range(len(self.examples)))
            random.Random(hashed_seed("sample order", self.seed, epoch)).shuffle(order)
            self._order = epoch, order
        chosen = self._order[1][number * self.size : (number + 1) * self.size]
        return [self.examples[at] for at in chosen]


def rows_of(examples: Sequence[Example]) -> Rows:
    """The rows of an optimizer step: advantage 1 and weight 1 / all trained tokens at every trained token."""
    token_ids = pad_sequence([example.token_ids.long() for example in examples], batch_first=True)
    mask = pad_sequence([example.mask.float() for example in examples], batch_first=True)
    lengths = torch.tensor([len(example.token_ids) for example in examples])
    rows = Rows.bare(token_ids, mask, torch.zeros_like(mask), lengths)
    rows.advantages, rows.weights = mask, SFT.weights(mask, rows.owner, rows.groups)
    return rows
