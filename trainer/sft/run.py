"""A supervised run: gather the samples, take the optimizer steps, and leave a folder like that of training."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from envhub.agents.models import resolve_model
from envhub.agents.rendering import ChatTemplateRenderer, load_renderer
from envhub.ledger import Ledger
from envhub.records import RolloutStore, RunFolder, numbered_folder
from envhub.trainer import alarms, checkpoint
from envhub.trainer.algorithms import SFT
from envhub.trainer.launcher import LocalLauncher
from envhub.trainer.lora import refuse_unfit
from envhub.trainer.metrics import MetricsLog
from envhub.trainer.optimizer import Optimization
from envhub.trainer.progress import Progress
from envhub.trainer.sft.config import SftConfig
from envhub.trainer.sft.examples import Batches, Example, hold_out, rows_of
from envhub.trainer.sft.held_out import HeldOut, plot, score
from envhub.trainer.sft.sources import Gathered, gather
from envhub.trainer.strategy import StepReport, Strategy

_SHOWN = ("gradient_norm", "learning_rate", "entropy")


@dataclass(frozen=True, slots=True)
class Planned:
    """The samples of a run: those to train in `batches`, those `held` out, and how many `steps` there are."""

    gathered: Gathered
    batches: Batches
    held: list[Example]
    steps: int

    def __str__(self) -> str:
        examples = self.gathered.examples
        parts = [
            self.gathered.note,
            f"{len(self.batches.examples)} samples to train with {sum(e.trained for e in self.batches.examples)} tokens",
            f"{len(self.held)} held out",
            f"{examples.cut} cut and {examples.dropped} dropped at {examples.max_tokens} tokens",
            f"{self.steps} steps",
        ]
        return "; ".join(parts)


async def plan(config: SftConfig, *, progress: Progress | None = None) -> tuple[Planned, Path, ChatTemplateRenderer]:
    """Find the model and make the samples; nothing is trained. Raises UserError."""
    source = resolve_model(config.model, notify=(progress or Progress()).say)
    refuse_unfit(source.path, config)
    renderer = load_renderer(source.path)
    gathered = await gather(config, source, renderer)
    training, held = hold_out(gathered.examples.items, config.eval_fraction, config.seed)
    batches = Batches(training, config.batch_size, config.seed)
    steps = config.steps or math.ceil((config.epochs or 1.0) * batches.an_epoch)
    return Planned(gathered, batches, held, steps), source.path, renderer


async def fine_tune(config: SftConfig, *, progress: Progress | None = None) -> Path:
    """Train and return the run folder. Raises UserError."""
    progress = progress or Progress()
    planned, model, renderer = await plan(config, progress=progress)
    options = Optimization.of(config, planned.steps)
    path = config.output or numbered_folder(Path("runs"), f"sft-{_stem(config)}")
    with RunFolder.open(path, what="supervised run", remedy="give another name with --output") as folder:
        progress.say(f"run folder: {path}")
        progress.say(str(planned))
        folder.write_config(config.model_dump(mode="json"))
        if planned.gathered.played:
            with RolloutStore(path / "rollouts.sqlite") as store:
                for rollout in planned.gathered.played:
                    store.add(rollout, phase="oracle")
        torch.manual_seed(config.seed)
        launcher = LocalLauncher()
        try:
            strategy = launcher.strategy(model, options, reference=None, critic=None, device=config.device)
            log = MetricsLog(path, tensorboard=config.tensorboard)
            try:
                await _Tuning(config, planned, strategy, renderer.tokenizer, path, log, progress).run()
            finally:
                log.close()
        finally:
            launcher.close()
    return path


@dataclass(slots=True)
class _Tuning:
    """The steps of one run."""

    config: SftConfig
    planned: Planned
    strategy: Strategy
    tokenizer: Any
    path: Path
    log: MetricsLog
    progress: Progress
    trained: list[dict[str, Any]] = field(default_factory=list)
    scored: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0

    async def run(self) -> None:
        config, total = self.config, self.planned.steps
        await self.evaluate(0)
        for step in range(1, total + 1):
            await self.step(step)
            if step == total or (config.eval_every and step % config.eval_every == 0):
                await self.evaluate(step)
            if step == total or (config.save_every and step % config.save_every == 0):
                await asyncio.to_thread(self.save, step)

    async def step(self, number: int) -> None:
        """One optimizer step on the mean NLL of all trained tokens of its batch."""
        batch, begun = self.planned.batches.at(number - 1), time.monotonic()
        report = await asyncio.to_thread(supervise, self.strategy, batch)
        self.skipped = alarms.count_skipped(self.skipped, number, [report.skipped], self.progress.warn)
        seconds, tokens = time.monotonic() - begun, report.metrics["action_tokens"]
        row = {
            "nll": report.metrics["loss"],
            "examples": len(batch),
            "tokens": tokens,
            "epoch": number / self.planned.batches.an_epoch,
            "seconds": seconds,
            **{name: report.metrics[name] for name in _SHOWN if name in report.metrics},
        }
        self.log.write(number, "sft", row)
        self.trained.append({"step": number, **row})
        self.progress.say(
            f"step {number}/{self.planned.steps}: NLL {row['nll']:.4f}, {tokens:.0f} tokens, {seconds:.1f} s"
        )

    async def evaluate(self, step: int) -> None:
        if not self.planned.held:
            return
        found: HeldOut = await asyncio.to_thread(score, self.strategy, self.planned.held, self.config.micro_tokens)
        row = {"nll": found.nll, "accuracy": found.accuracy, "tokens": found.tokens}
        self.log.write(step, "held_out", row)
        self.scored.append({"step": step, **row})
        self.progress.say(f"held out, after step {step}: {found}")

    def save(self, step: int) -> None:
        meta = checkpoint.Meta(
            step=step, sampler=checkpoint.Place(position=step, seed=self.config.seed), ledger=Ledger().to_dict(),
            version=step,
        )  # fmt: skip
        saved = checkpoint.save(self.path / "checkpoints", self.strategy, self.tokenizer, meta, self.config.keep)
        plot(self.trained, self.scored, self.path / "curve.png", self.planned.gathered.note)
        self.progress.say(f"checkpoint: {saved.path}")


def supervise(strategy: Strategy, batch: Sequence[Example]) -> StepReport:
    """One optimizer step of a strategy on the mean NLL of a batch's trained tokens."""
    return strategy.step(rows_of(batch), SFT, 1.0, None, None)


def _stem(config: SftConfig) -> str:
    given = str(getattr(config, config.source))
    name = Path(given).stem if config.source == "data" else Path(given.partition(":")[0]).name
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in name)[:60] or "run"
