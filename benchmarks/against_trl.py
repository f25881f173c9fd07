"""A whole GRPO step against TRL's: sampling, rewards, update and, where the engine has a process of its own, the weights.

The same four questions in every step, the same rewards, float32 on a CPU, and the hyperparameters that both call by other
names. TRL is its GRPOTrainer, which samples with transformers' `generate`, with vLLM in the trainer's process (whose number
format is vLLM's to choose: TRL has no option for it), or with transformers' continuous batching; gradient checkpointing,
which its preset turns on and which costs time, is off. Ours is `envhub train` with vLLM and with the transformers engine.
The bars are against `generate`. Each side runs in a process of its own, in an order that is the same from both ends; the
first step of each process is left out.

    python -m benchmarks.against_trl [--model smollm2] [--group 8] [--tokens 64] [--steps 1] [--own-format] [--without trl+vllm ...]
        [--json]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, at_least, last_line, report
from benchmarks.questions import QUESTIONS, share
from envhub.agents.models import resolve_model
from envhub.records import RolloutStore
from envhub.trainer.metrics import read_metrics

BARS = {"vllm": 3.0, "transformers": 1.2}
SAMPLING: dict[str, dict[str, Any]] = {
    "trl": {},
    "trl+vllm": {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 1024},
    "trl+batching": {"use_transformers_continuous_batching": True},
}
RATE = 1e-6
MICRO = 8  # rollouts of a micro-batch of TRL's; ours has a budget of tokens


@dataclass(frozen=True)
class Shape:
    """What a step is: `group` answers to each question, of `tokens` at most; `steps` are timed after a first.

    `own_format` leaves the number format to each side: on CPUs with bf16 instructions both compute in bf16 then.
    """

    model: str
    group: int
    tokens: int
    steps: int
    own_format: bool = False

    @property
    def path(self) -> Path:
        return resolve_model(self.model).path


@dataclass(frozen=True)
class Run:
    """Seconds of each timed step, of which `sampling`; its sampled tokens; and the prompts that were given."""

    seconds: list[float]
    sampling: list[float]
    tokens: list[float]
    prompts: list[list[int]]


def ours(shape: Shape, engine: str) -> Run:
    """Steps of `envhub train` in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        options = {
            "--env": f"{Path(__file__).with_name('questions.py')}:Questions", "--algo": "grpo", "--engine": engine,
            "--model": str(shape.path), "--tasks-per-step": len(QUESTIONS), "--group-size": shape.group,
            "--max-turn-tokens": shape.tokens, "--steps": shape.steps + 1, "--eval-tasks": 0, "--temperature": 1,
            "--learning-rate": RATE, "--output": folder,
        }  # fmt: skip
        if not shape.own_format:
            options |= {"--precision": "float32", "--engine-options": "dtype=float32"}
        last_line("envhub.cli", "train", *(part for option in options.items() for part in option))
        rows = read_metrics(folder)[1:]
        with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
            samples = [rollout.trajectory.samples()[0] for rollout in store.iterate(phase="train", step=1)]
    prompts = [sample.token_ids[: sample.mask.index(True)] for sample in samples]
    columns = [[row[name] for row in rows] for name in ("step_seconds", "rollout_seconds", "sampled_tokens")]
    return Run(*columns, distinct(prompts))


def theirs(shape: Shape, sampling: str) -> Run:
    """Steps of TRL in a process of its own."""
    sizes = shape.model, shape.group, shape.tokens, shape.steps, int(shape.own_format)
    return Run(**json.loads(last_line("benchmarks.against_trl", "--trl", sampling, *sizes)))


def print_steps(sampling: str, model: str, group: str, tokens: str, steps: str, own_format: str) -> int:
    """Take steps with TRL and print what they took."""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    from benchmarks.trl_side import whole_steps

    shape = Shape(model, int(group), int(tokens), int(steps))
    micro = min(MICRO, len(QUESTIONS) * shape.group)
    with tempfile.TemporaryDirectory() as output:
        taken = whole_steps(
            shape.path, QUESTIONS, share, Path(output), loss_type="grpo", learning_rate=RATE, temperature=1.0,
            num_generations=shape.group, max_completion_length=shape.tokens, gradient_checkpointing=False,
            per_device_train_batch_size=micro, gradient_accumulation_steps=len(QUESTIONS) * shape.group // micro,
            max_steps=shape.steps + 1, **SAMPLING[sampling], **({} if own_format == "0" else {"bf16": True}),
        )  # fmt: skip
    prompts = distinct([prompt for step in taken.prompts for prompt in step])
    print(json.dumps(asdict(Run(taken.seconds[1:], taken.sampling[1:], [*map(float, taken.tokens[1:])], prompts))))
    return 0


def distinct(prompts: list[list[int]]) -> list[list[int]]:
    """Every prompt once, sorted."""
    return [list(prompt) for prompt in sorted(set(map(tuple, prompts)))]


def main() -> int:
    """Measure and print."""
    if "--trl" in sys.argv:
        return print_steps(*sys.argv[sys.argv.index("--trl") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--group", type=int, default=8, help="answers to each of four questions")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--steps", type=int, default=1, help="timed steps of each process")
    parser.add_argument("--own-format", action="store_true", help="bf16 for both, where the CPU has such instructions")
    parser.add_argument("--without", nargs="*", default=[], choices=list(SAMPLING)[1:], help="not to be measured")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    shape = Shape(given.model, given.group, given.tokens, given.steps, given.own_format)
    others = [name for name in SAMPLING if name not in given.without]
    sides: dict[str, Callable[[], Run]] = {name: lambda name=name: theirs(shape, name) for name in others}
    sides |= {engine: lambda engine=engine: ours(shape, engine) for engine in BARS}
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for name in (*sides, *reversed(sides)):
        runs[name].append(sides[name]())
        if runs[name][-1].prompts != runs["trl"][0].prompts:
            raise SystemExit(f"{name} was given other prompts than trl")
    median = {name: statistics.median([time for run in found for time in run.seconds]) for name, found in runs.items()}
    rows: list[Row] = []
    for name, found in runs.items():
        rows.append(Row(f"a step of {name}", median[name], "s"))
        rows.append(
            Row(f"of which sampling by {name}", statistics.median(t for run in found for t in run.sampling), "s")
        )
        rows.append(Row(f"sampled in it by {name}", statistics.fmean(t for run in found for t in run.tokens), "tokens"))
    for name, bar in BARS.items():
        rows.append(at_least(f"trl against {name}", median["trl"] / median[name], "ratio", bar))
        rows += [Row(f"{other} against {name}", median[other] / median[name], "ratio") for other in others[1:]]
    for name, (first, second) in runs.items():
        again = statistics.median(second.seconds) / statistics.median(first.seconds)
        rows.append(Row(f"{name} against itself (A/A: its two processes)", again, "ratio"))
    return report("a whole step", rows)


if __name__ == "__main__":
    sys.exit(main())
