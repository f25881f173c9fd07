"""Seconds of a training step: rollouts and update one after the other, or at once with the cores shared out or not.

Each way is a run of the main job's step (`sandbox_code`, vLLM) in a process of its own; the first step, which has nothing
to overlap with, is left out. On a CPU the work is the same and only waiting can be saved; on a GPU machine with an engine
of its own the shorter of both phases is.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Row, report
from envhub.trainer.metrics import read_metrics

ONE_AFTER_THE_OTHER: list[str] = []
SHARED_OUT = ["--overlap"]


def step_seconds(flags: Sequence[str], model: str, steps: int) -> list[float]:
    """Seconds of a run's steps but the first."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [
            sys.executable, "-m", "envhub.cli", "train", "--env", "sandbox_code", "--engine", "vllm", "--model", model,
            "--steps", str(steps), "--eval-tasks", "0", "--output", str(folder), *flags,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [row["step_seconds"] for row in read_metrics(folder)][1:]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    all_cores = ["--overlap", "--engine-options", "threads=" + ",".join(map(str, sorted(os.sched_getaffinity(0))))]
    ways = {
        "one after the other": ONE_AFTER_THE_OTHER,
        "at once, cores shared out": SHARED_OUT,
        "at once, all cores for both": all_cores,
    }
    order = [*ways, *reversed(ways)]  # so that a drift of the machine falls on all alike
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for name in order:
        found[name].append(step_seconds(ways[name], given.model, given.steps))
    alone, again = (statistics.median(times) for times in found["one after the other"])
    median = {name: statistics.median([time for run in runs for time in run]) for name, runs in found.items()}
    rows = [Row(f"a step, {name}", seconds, "s") for name, seconds in median.items()]
    rows += [
        Row(f"{name}, against one after the other", median[name] / median["one after the other"], "ratio")
        for name in list(ways)[1:]
    ]
    rows.append(Row("one after the other against itself (A/A)", again / alone, "ratio"))
    return report("rollouts and update at once", rows)


if __name__ == "__main__":
    sys.exit(main())
