"""A supervised run: gather the samples, take the optimizer steps, and leave a folder like that of training."""

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from envhub.agents.models import resolve_model
from envhub.agents.rendering import ChatTemplateRenderer, load_renderer
from envhub.errors import EnvhubError, UserError
from envhub.ledger import Ledger
from envhub.records import RolloutStore, RunFolder, numbered_folder
from envhub.records.folder import CONFIG
from envhub.rollout import Rollout
from envhub.trainer import alarms, checkpoint, metrics
from envhub.trainer.algorithms import SFT
from envhub.trainer.folder import go_on_after, how_to_go_on, newest, saved_settings, sweep
from envhub.trainer.launcher import LocalLauncher
from envhub.trainer.lora import refuse_unfit
from envhub.trainer.metrics import MetricsLog
from envhub.trainer.optimizer import Optimization
from envhub.trainer.plotting import plot, usual
from envhub.trainer.progress import Progress
from envhub.trainer.sft.config import SOURCES, SftConfig
from envhub.trainer.sft.examples import Batches, Example, hold_out, rows_of
from envhub.trainer.sft.held_out import HeldOut, score
from envhub.trainer.sft.sources import Gathered, gather
from envhub.trainer.stopping import STOPPING, second_at_once, whole
from envhub.trainer.strategy import StepReport, Strategy
from envhub.trainer.tracking import refuse_missing, tracked

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
            f"{self.steps} step{'' if self.steps == 1 else 's'}",
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


async def fine_tune(config: SftConfig, *, resume: Path | None = None, progress: Progress | None = None) -> Path:
    """Train and return the run folder. `resume` is a run folder to go on with. Raises UserError."""
    progress = progress or Progress()
    if resume is not None:
        saved_run(resume)
    refuse_missing(config.track)
    planned, model, renderer = await plan(config, progress=progress)
    options = Optimization.of(config, planned.steps)
    path = resume or config.output or numbered_folder(Path("runs"), f"sft-{_stem(config)}")
    with (
        RunFolder.open(path, resume=resume is not None, what="supervised run") as folder,
        contextlib.ExitStack() as stack,
    ):
        progress.say(f"run folder: {path}")
        progress.say(str(planned))
        settings = config.model_dump(mode="json")
        if resume is None:
            folder.write_config(settings)
        saved = _taken_up(path, planned, progress) if resume is not None else None
        if saved is not None:
            model = model if config.lora_rank else saved.source().path  # an adapter is taken up by the strategy
        if resume is not None:
            folder.write_config(settings)
        if saved is None:
            _keep_played(path, planned.gathered.played)
        torch.manual_seed(config.seed)
        launcher = LocalLauncher()
        stack.callback(launcher.close)
        strategy = launcher.strategy(model, options, reference=None, critic=None, device=config.device)
        tuning = _Tuning(config, planned, strategy, renderer.tokenizer, path, progress)
        if saved is not None:
            tuning.resume(saved)
        try:
            with second_at_once(lambda: progress.warn(STOPPING)):
                async with tracked(
                    config.track, config.track_project, path, settings, progress, resumed=resume is not None
                ) as trackers:
                    log = MetricsLog(path, tensorboard=config.tensorboard, trackers=trackers)
                    stack.callback(log.close)
                    await tuning.run(log)
        except (asyncio.CancelledError, EnvhubError):
            progress.tell(how_to_go_on(path, "sft"))
            raise
    return path


def saved_run(folder: Path) -> dict[str, Any]:
    """The configuration that a supervised run has saved in its folder. Raises UserError where the folder is no such run."""
    return saved_settings(folder, SftConfig, "supervised", SOURCES)


def _taken_up(path: Path, planned: Planned, progress: Progress) -> checkpoint.Checkpoint | None:
    """The newest checkpoint of a run's folder, rid of what came after it. Raises UserError where it is of other samples."""
    sweep(path)
    saved = newest(path)
    if saved is not None and saved.check().samples != planned.batches.digest():
        raise UserError(
            f"the checkpoint {saved.path} is of other samples, or of other batches, than {path / CONFIG} gives now: give back "
            "the source of the samples and the configuration that it had, or start a new run"
        )
    go_on_after(saved, path, progress, planned.steps)
    return saved


def _keep_played(path: Path, played: Sequence[Rollout]) -> None:
    if not played:
        return
    with RolloutStore(path / "rollouts.sqlite") as store:
        store.drop_after("oracle", -1)
        store.add_all(played, phase="oracle", step=0)


@dataclass(slots=True)
class _Tuning:
    """The steps of one run; `done` counts those that are finished, `saved` those of the newest checkpoint."""

    config: SftConfig
    planned: Planned
    strategy: Strategy
    tokenizer: Any
    path: Path
    progress: Progress
    done: int = 0
    saved: int = 0
    skipped: int = 0

    def resume(self, saved: checkpoint.Checkpoint) -> None:
        """Take up a checkpoint. Raises UserError for a damaged one."""
        saved.restore(self.strategy)
        self.done = self.saved = saved.step
        self.skipped = saved.meta().skipped

    async def run(self, log: metrics.MetricsLog) -> None:
        """Train to the last step. When it is cancelled, the step or the save that goes on ends, and the last step is saved."""
        config, total = self.config, self.planned.steps
        try:
            if not self.done or (self._is_scored() and not self._was_scored()):
                await self.evaluate(log)
            while self.done < total:
                await whole(self.step(log))
                if self._is_scored():
                    await self.evaluate(log)
                if self.done == total or (config.save_every and self.done % config.save_every == 0):
                    await whole(self.save())
        except asyncio.CancelledError:
            await whole(self.save())
            raise
        self.draw()

    async def step(self, log: metrics.MetricsLog) -> None:
        """One optimizer step on the mean NLL of all trained tokens of its batch."""
        number, batch, begun = self.done + 1, self.planned.batches.at(self.done), time.monotonic()
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
        log.write(number, "sft", row)
        self.done = number
        self.progress.say(
            f"step {number}/{self.planned.steps}: NLL {row['nll']:.4f}, {tokens:.0f} tokens, {seconds:.1f} s"
        )

    def _is_scored(self) -> bool:
        """Whether the held-out part is to be scored after the last finished step."""
        every = self.config.eval_every
        return self.done == self.planned.steps or (every > 0 and self.done % every == 0)

    def _was_scored(self) -> bool:
        """Whether that was done before the run was stopped."""
        return any((row["kind"], row["step"]) == ("held_out", self.done) for row in metrics.read_metrics(self.path))

    async def evaluate(self, log: metrics.MetricsLog) -> None:
        if not self.planned.held:
            return
        found: HeldOut = await asyncio.to_thread(score, self.strategy, self.planned.held, self.config.micro_tokens)
        log.write(self.done, "held_out", {"nll": found.nll, "accuracy": found.accuracy, "tokens": found.tokens})
        self.progress.say(f"held out, after step {self.done}: {found}")

    async def save(self) -> None:
        """Write a checkpoint of the last finished step, where there is one that is not saved."""
        if self.done == self.saved:
            return
        meta = checkpoint.Meta(
            step=self.done, sampler=checkpoint.Place(position=self.done, seed=self.config.seed),
            ledger=Ledger().to_dict(), version=self.done, skipped=self.skipped, samples=self.planned.batches.digest(),
        )  # fmt: skip
        folder, keep = self.path / "checkpoints", self.config.keep
        made = await asyncio.to_thread(checkpoint.save, folder, self.strategy, self.tokenizer, meta, keep)
        self.saved = self.done
        self.draw()
        self.progress.say(f"checkpoint: {made.path}")

    def draw(self) -> None:
        """Draw the curve as `curve.png`."""
        rows = metrics.read_metrics(self.path)
        plot({self.path.name: rows}, self.path / "curve.png", shown=usual(rows), title=self.planned.gathered.note)


def supervise(strategy: Strategy, batch: Sequence[Example]) -> StepReport:
    """One optimizer step of a strategy on the mean NLL of a batch's trained tokens."""
    return strategy.step(rows_of(batch), SFT, 1.0, None, None)


def _stem(config: SftConfig) -> str:
    given = str(getattr(config, config.source))
    name = Path(given).stem if config.source == "data" else Path(given.partition(":")[0]).name
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in name)[:60] or "run"
