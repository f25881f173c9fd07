"""A checkpoint's save against writing the same bytes with safetensors, both synced to the disk.

Ours is what a run does: model, tokenizer, optimizer and random generators into a new folder, synced, renamed, and the one
before it removed. The other side is one safetensors file of the same tensors, synced, in place of the one before it.

    python -m benchmarks.checkpoint_save [--model smollm2] [--rounds 2] [--folder FOLDER] [--json]
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.measure import Row, abba, at_most, ratio, report
from envhub.agents.engines.loading import load_tokenizer
from envhub.agents.models import resolve_model
from envhub.ledger import Ledger
from envhub.trainer import checkpoint
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy

BAR = 1.3


def tensors(state: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a nested state, by its place."""
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors(value, f"{name}.{key}")
    elif isinstance(state, list):
        for key, value in enumerate(state):
            yield from tensors(value, f"{name}.{key}")


def measure(model: str, rounds: int, folder: Path) -> list[Row]:
    """The rows of the table."""
    path = resolve_model(model).path
    strategy, tokenizer = TorchStrategy(path, Optimization(precision="float32"), device="cpu"), load_tokenizer(path)
    for parameter in strategy.stepper.parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    strategy.stepper.take(0.0)  # the moments are there from the first step on
    steps = itertools.count(1)

    def ours() -> float:
        meta = checkpoint.Meta(
            step=next(steps), sampler=checkpoint.Place(position=0, seed=0), ledger=Ledger().to_dict(), version=0
        )
        began = time.perf_counter()
        checkpoint.save(folder / "checkpoints", strategy, tokenizer, meta, keep=1)
        return time.perf_counter() - began

    ours()
    weights = dict(tensors({"model": dict(strategy.model.named_parameters()), "state": strategy.state()}))
    size = sum(tensor.nbytes for tensor in weights.values())
    saved = sum(file.stat().st_size for file in (folder / "checkpoints").rglob("*") if file.is_file())

    def theirs() -> float:
        began = time.perf_counter()
        save_file(weights, folder / "writing.safetensors")
        with (folder / "writing.safetensors").open("rb+") as file:
            os.fsync(file.fileno())
        (folder / "writing.safetensors").rename(folder / "whole.safetensors")
        return time.perf_counter() - began

    theirs()
    first, second = abba(ours, theirs, rounds)
    return [
        Row(f"checkpoint of {model}, {saved / 1e6:.0f} MB", statistics.median(first), "s"),
        Row(f"its tensors with safetensors, {size / 1e6:.0f} MB", statistics.median(second), "s"),
        at_most(f"checkpoint against safetensors (median of {len(first)} pairs)", ratio(first, second), "ratio", BAR),
        Row("safetensors against itself (A/A: the two of each round)", ratio(second[::2], second[1::2]), "ratio"),
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3, help="of four measurements each: two pairs")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        return report("checkpoint save", measure(given.model, given.rounds, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
