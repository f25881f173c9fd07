"""An optimizer step of the trainer: against a bare PyTorch loop, with a prompt in common, and against TRL's update.

The bare loop does forward, logprobs, backward, clipping and AdamW on the same tokens in the same micro-batches, with the
model's whole forward pass and without metrics. TRL's side is its GRPOTrainer's own loss on the same scored rollouts, 8 in a
micro-batch, without gradient checkpointing, then backward, clipping and its AdamW; neither sampling nor its loop is timed.
The log-normal answers follow a prompt that their group shares, which ours computes once. Peak memory is measured in
processes of their own: the most resident memory during a first step, and during two, over that before them, with as many
tokens in a micro-batch on both sides. On two cores the three comparisons take about four minutes each.

    python -m benchmarks.optimizer_step [--only own shared ragged memory] [--model smollm2] [--rollouts 16] [--prompt 64]
                                        [--answer 64] [--rounds 2] [--json]
"""

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.measure import Row, abba, at_least, at_most, last_line, ratio, report
from benchmarks.rollouts import lognormal, written
from envhub.agents.models import resolve_model
from envhub.rollout import Rollout
from envhub.trainer.algorithms import GRPO
from envhub.trainer.batch import build_rows, micro_batches
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy

GROUP = 8  # rollouts
ALGORITHM = GRPO.with_options(correction="none")


@dataclass(frozen=True)
class Shape:
    """What is trained on: so many rollouts with these mean lengths in tokens; `ragged` answers are log-normal."""

    model: str
    rollouts: int
    prompt: int
    answer: int
    ragged: bool = False
    shared: bool = False
    budget: int = 2048  # tokens of a micro-batch of ours and of the bare loop's; TRL's has 8 rollouts

    def made(self) -> list[Rollout]:
        """Groups of rollouts; each has a prompt of its own unless the group shares one."""
        rng, out = random.Random(0), []
        for number in range(self.rollouts):
            if not self.shared or number % GROUP == 0:
                prompt = [rng.randrange(100, 400) for _ in range(self.prompt)]
            length = lognormal(rng, self.answer, 8 * self.answer) if self.ragged else self.answer
            answer = [rng.randrange(100, 400) for _ in range(length)]
            out.append(written([(prompt, answer)], rng.random(), str(number // GROUP)))
        return out

    @property
    def path(self) -> Path:
        return resolve_model(self.model).path

    @property
    def options(self) -> Optimization:
        return Optimization(learning_rate=1e-6, micro_tokens=self.budget, precision="float32")


def ours(shape: Shape) -> Callable[[], float]:
    """A function that takes one step with the trainer's strategy and returns its seconds."""
    strategy = TorchStrategy(shape.path, shape.options, device="cpu")
    rows = build_rows(shape.made(), ALGORITHM)

    def step() -> float:
        began = time.perf_counter()
        strategy.step(rows, ALGORITHM, 1.0, None, None)
        return time.perf_counter() - began

    return step


def bare(shape: Shape) -> Callable[[], float]:
    """The same of a loop that anyone would write."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(shape.path, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    rows = build_rows(shape.made(), ALGORITHM)

    def step() -> float:
        began = time.perf_counter()
        for part in micro_batches(rows, shape.budget):
            attention = (torch.arange(part.token_ids.shape[1]) < part.lengths[:, None]).long()
            logits = model(input_ids=part.token_ids, attention_mask=attention, use_cache=False).logits[:, :-1]
            logprobs = logits.log_softmax(-1).gather(-1, part.token_ids[:, 1:, None])[..., 0]
            ratios = (logprobs - logprobs.detach()).exp()
            (-(ratios * part.advantages[:, 1:] * part.weights[:, 1:]).sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    return step


def theirs(shape: Shape) -> Callable[[], float]:
    """The same of TRL's GRPOTrainer: the time of its optimizer step, after the rollouts are scored."""
    from benchmarks.trl_side import replaying_trainer

    rollouts = shape.made()
    rows = build_rows(rollouts, ALGORITHM)
    with tempfile.TemporaryDirectory() as output:
        trainer = replaying_trainer(
            shape.path, rollouts, Path(output), loss_type="grpo", learning_rate=1e-6,
            max_completion_length=int(rows.mask.sum(1).max()), per_device_train_batch_size=GROUP,
            gradient_accumulation_steps=shape.rollouts // GROUP, gradient_checkpointing=False, max_steps=1,
        )  # fmt: skip
        trainer.create_optimizer()
        model = trainer.model.train()
        prompts = [{"prompt": rollout.group} for rollout in rollouts]
        scored = trainer._generate_and_score_completions(prompts)
    from trl.trainer.utils import split_tensor_dict

    prepared = split_tensor_dict(scored, shape.rollouts // GROUP)
    trainer.current_gradient_accumulation_steps = shape.rollouts // GROUP

    def step() -> float:
        began = time.perf_counter()
        for part in prepared:
            trainer.compute_loss(model, part).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trainer.optimizer.step()
        model.zero_grad()
        return time.perf_counter() - began

    return step


SIDES = {"ours": ours, "bare": bare, "trl": theirs}


def peak(side: str, shape: Shape) -> tuple[float, float]:
    """What a first step, and what two, add at most to the resident memory of a process of their own, in megabytes."""
    sizes = shape.model, shape.rollouts, shape.prompt, shape.answer
    first, both = last_line("benchmarks.optimizer_step", "--peak", side, *sizes).split()
    return float(first), float(both)


def print_peak(side: str, model: str, rollouts: str, prompt: str, answer: str) -> int:
    """Take two steps and print what the first and what both added to the resident memory, in megabytes.

    Groups share their prompts; a micro-batch of ours has as many tokens as one of TRL's.
    """
    tokens = GROUP * (int(prompt) + int(answer))
    step = SIDES[side](Shape(model, int(rollouts), int(prompt), int(answer), shared=True, budget=tokens))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    peaks = []
    for _ in range(2):
        step()
        peaks.append((_resident("VmHWM") - before) / 1e3)
    print(*peaks)
    return 0


def _resident(name: str) -> int:
    """A figure of this process in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def compared(what: str, shape: Shape, other: str, bar: float, rounds: int) -> list[Row]:
    """Rows of tokens a second of ours and of the other side."""
    tokens = sum(len(rollout.trajectory.samples()[0].token_ids) for rollout in shape.made())
    print(f"measuring {what}", file=sys.stderr, flush=True)
    gc.collect()  # the models of the comparison before
    mine, its = ours(shape), SIDES[other](shape)
    mine(), its()
    first, second = abba(lambda: tokens / mine(), lambda: tokens / its(), rounds)
    return [
        Row(f"{what}: ours", statistics.median(first), "tokens/s"),
        Row(f"{what}: {other}", statistics.median(second), "tokens/s"),
        at_least(f"{what}: ours against {other} (median of {len(first)} pairs)", ratio(first, second), "ratio", bar),
        Row(f"{what}: {other} against itself (A/A)", ratio(second[::2], second[1::2]), "ratio"),
    ]


def memory(shape: Shape, _: int) -> list[Row]:
    """Rows of the most resident memory of both sides."""
    print("measuring memory", file=sys.stderr, flush=True)
    peaks, rows = {side: peak(side, shape) for side in ("ours", "trl")}, list[Row]()
    for number, what in enumerate(("a first step", "two steps, with the moments of the first")):
        rows += [Row(f"most memory of {what}: {side}", found[number], "MB") for side, found in peaks.items()]
        against = peaks["ours"][number] / peaks["trl"][number]
        rows.append(at_most(f"most memory of {what}: ours against trl", against, "ratio", 0.7))
    return rows


PARTS: dict[str, Callable[[Shape, int], list[Row]]] = {
    "own": lambda shape, rounds: compared("prompts of their own", shape, "bare", 0.9, rounds),
    "shared": lambda shape, rounds: compared(
        "a prompt for each group", replace(shape, shared=True), "bare", 1.0, rounds
    ),
    "ragged": lambda shape, rounds: compared(
        "log-normal answers", replace(shape, ragged=True, shared=True), "trl", 2.0, rounds
    ),
    "memory": memory,
}


def main() -> int:
    """Measure and print."""
    if "--peak" in sys.argv:
        return print_peak(*sys.argv[sys.argv.index("--peak") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS), help="parts to measure")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rollouts", type=int, default=16, help="a multiple of 8")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2, help="of four measurements each: two pairs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = given.model, given.rollouts, given.prompt, given.answer
    rows = [row for part in given.only for row in PARTS[part](Shape(*sizes), given.rounds)]
    return report("optimizer step", rows)


if __name__ == "__main__":
    sys.exit(main())
