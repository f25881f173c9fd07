"""How the cores of a CPU are shared out between an engine and the trainer that compute at the same time."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Share:
    """The cores of the engine and those of the trainer; where only one computes at a time, both have all."""

    engine: tuple[int, ...]
    trainer: tuple[int, ...]


def share_out(overlap: bool, cores: tuple[int, ...] | None = None) -> Share:
    """Half of the cores (by default those that this process may use) for each when both compute at once, else all for both.

    Two sets of threads on the same cores wait for each other at every barrier of a matrix product.
    """
    cores = tuple(sorted(os.sched_getaffinity(0))) if cores is None else cores
    if not overlap or len(cores) < 2:
        return Share(cores, cores)
    half = len(cores) // 2
    return Share(cores[:half], cores[half:])


@contextlib.contextmanager
def computing_with(count: int) -> Iterator[None]:
    """Let torch compute with at most so many threads in this process for the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, count)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
