"""What advantages and batching cost: from rollouts to micro-batches, in microseconds a sample.

The rollouts are made by hand: groups of 8 with a prompt in common and answers of log-normal length. Each measurement goes
from their token records to rows, advantages, loss weights and micro-batches.

    python -m benchmarks.batching [--samples 100000] [--rounds 1] [--json]
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.measure import Row, abba, at_most, ratio, report
from benchmarks.rollouts import lognormal, written
from envhub.rollout import Rollout
from envhub.trainer.algorithms import get_algorithm
from envhub.trainer.batch import assign, micro_batches, token_rows

BAR = 20.0
GROUP, PROMPT, ANSWER, LONGEST = 8, 64, 48, 192  # rollouts, and tokens


def rollouts(samples: int) -> list[Rollout]:
    """So many rollouts of one turn, with rewards of 0 and 1."""
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 500) for _ in range(PROMPT)] for _ in range(-(-samples // GROUP))]
    return [
        written(
            [(prompts[n // GROUP], [rng.randrange(3, 500) for _ in range(lognormal(rng, ANSWER, LONGEST))])],
            float(rng.random() < 0.5), str(n // GROUP),
        )
        for n in range(samples)
    ]  # fmt: skip


def seconds(given: Sequence[Rollout], name: str, token_budget: int = 16_384) -> tuple[float, ...]:
    """Of rows, of advantages and weights, and of micro-batches."""
    algorithm = get_algorithm(name)
    rewards = torch.tensor([rollout.reward for rollout in given])
    began = time.perf_counter()
    rows = token_rows(given)
    made = time.perf_counter()
    assign(rows, rewards, algorithm)
    assigned = time.perf_counter()
    count = sum(len(part) for part in micro_batches(rows, token_budget))
    done = time.perf_counter()
    assert count == len(given)
    return made - began, assigned - made, done - assigned


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1, help="of four measurements each")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    made, rows = rollouts(given.samples), []
    seconds(made, "ppo")  # the first to touch so much memory waits for it to be found, as a first step of training does
    for name in ("grpo", "reinforce_baseline", "ppo"):
        parts: list[tuple[float, ...]] = []

        def once(name: str = name, parts: list[tuple[float, ...]] = parts) -> float:
            parts.append(seconds(made, name))
            return sum(parts[-1]) / given.samples * 1e6

        first, second = abba(once, once, given.rounds)
        split = [statistics.median(part) / given.samples * 1e6 for part in zip(*parts, strict=True)]
        rows += [
            at_most(
                f"{name}: from {given.samples} rollouts to micro-batches",
                statistics.median(first + second),
                "µs a sample",
                BAR,
            ),
            *(
                Row(f"{name}: of that, {what}", value, "µs a sample")
                for what, value in zip(("rows", "advantages", "micro-batches"), split, strict=True)
            ),
            Row(f"{name}: against itself (A/A)", ratio(first, second), "ratio"),
        ]
    return report("batching", rows)


if __name__ == "__main__":
    sys.exit(main())
