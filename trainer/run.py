"""A whole run: open the folder, start the parts, train, close everything."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from envhub.agents.engines import choose_engine
from envhub.agents.engines.loading import load_tokenizer
from envhub.agents.executors import Blocked, Executor, MultiTurnExecutor, SingleTurnExecutor, Watchdog
from envhub.agents.models import ModelSource, resolve_model
from envhub.agents.session import prepare_agent, started
from envhub.errors import EnvhubError, UserError
from envhub.records import RolloutStore, RunFolder, numbered_folder, taken_up
from envhub.trainer import checkpoint, metrics, tracking
from envhub.trainer.config import TrainConfig
from envhub.trainer.folder import go_on_after, how_to_go_on, newest, saved_config, sweep
from envhub.trainer.launcher import LocalLauncher
from envhub.trainer.loop import Trainer
from envhub.trainer.lora import refuse_unfit
from envhub.trainer.optimizer import Optimization
from envhub.trainer.origin import Origin
from envhub.trainer.plan import Plan, engine_options, plan, trainer_threads
from envhub.trainer.progress import Progress
from envhub.trainer.reference import find_reference
from envhub.trainer.stopping import STOPPING, second_at_once
from envhub.trainer.threads import computing_with
from envhub.trainer.transfer import make_transfer

EXECUTORS: dict[str, type[Executor]] = {"multi_turn": MultiTurnExecutor, "single_turn": SingleTurnExecutor}


async def train(config: TrainConfig, *, resume: Path | None = None, progress: Progress | None = None) -> Path:
    """Train and return the run folder. `resume` is a run folder to go on with. Raises UserError."""
    progress = progress or Progress()
    planned = plan(config)
    if resume is not None:
        saved_config(resume)
    path = resume or config.output or next_folder(planned.environment.id, planned.algorithm.name)
    initial = resolve_model(config.model, notify=progress.say)
    reference = find_reference(config.reference, initial, planned.algorithm.kl_coef, progress.say)
    refuse_unfit(initial.path, config)
    with (
        RunFolder.open(path, resume=resume is not None, what="training run") as folder,
        contextlib.ExitStack() as stack,
    ):
        sweep(path)
        settings = config.model_dump(mode="json")
        if resume is None:
            folder.write_config(settings)  # first of all: what has one can be gone on with
        stack.enter_context(_logging_to(path / "run.log"))
        saved, source = newest(path) if resume is not None else None, initial
        if saved is not None:
            saved.check()
            present = Origin.of(config, planned)
            saved.refuse_another(present)
            origin = saved.meta().origin
            before = origin.source if origin is not None else ""
            if before and present.source and before != present.source:
                progress.warn(
                    f"warning: the source of environment {config.env} has changed since the checkpoint was saved: rewards from here "
                    "on may not be comparable with those before"
                )
            source = initial if config.lora_rank else saved.source()  # an adapter is taken up by the strategy
        tokenizer = saved.tokenizer() if saved is not None else load_tokenizer(source.path)
        place = path / "rollouts.sqlite"
        store, missing = (RolloutStore(place), "") if resume is None else taken_up(place)
        stack.enter_context(store)
        progress.say(f"run folder: {path}")
        progress.say(planned.algorithm.described())
        if resume is not None:
            go_on_after(saved, path, progress, config.steps)
            if missing and saved is not None:
                progress.warn(missing)
            folder.write_config(settings)
        launcher = LocalLauncher()
        stack.callback(launcher.close)
        try:
            with second_at_once(lambda: progress.warn(STOPPING)):
                async with tracking.tracked(
                    config.track, config.track_project, path, settings, progress, resumed=resume is not None
                ) as trackers:
                    start = _Start(initial, reference, source, tokenizer, saved)
                    await _train(config, planned, start, folder, store, launcher, trackers, progress)
        except asyncio.CancelledError:
            progress.tell(how_to_go_on(path, "train"))
            raise
    return path


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Write what envhub's loggers say to a file. Where there is no room for it, training goes on without."""
    try:
        handler = _LogFile(path)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}") from problem
    logger = logging.getLogger("envhub")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


class _Told:
    """Says each line of code that blocks the event loop once: while it does, nobody else can say anything."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._known = progress, set[tuple[str, int]]()

    def __call__(self, block: Blocked) -> None:
        place = block.file, block.line
        if not block.is_starved and place not in self._known:
            self._known.add(place)
            self._progress.warn(f"warning: {block}")


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written is no reason to print a traceback in the middle of a run."""


@dataclass(frozen=True, slots=True)
class _Start:
    """What a run begins with: the model it is of, the folder of its reference, and the checkpoint that it goes on with.

    The weights are of `source`, which is that checkpoint where it has whole ones.
    """

    initial: ModelSource
    reference: Path | None
    source: ModelSource
    tokenizer: Any
    saved: checkpoint.Checkpoint | None


async def _train(
    config: TrainConfig, planned: Plan, start: _Start, folder: RunFolder, store: RolloutStore, launcher: LocalLauncher,
    trackers: tracking.Trackers, progress: Progress,
) -> None:  # fmt: skip
    torch.manual_seed(config.seed)
    engine = choose_engine(config.engine)
    progress.say(f"model {start.initial.name}; starting engine {engine}")
    prepared = prepare_agent(
        str(start.source.path), engine, options=engine_options(config), parser=config.parser,
        executor=EXECUTORS[config.executor],
    )  # fmt: skip
    async with started(prepared) as agent:
        policy = Optimization.of(config, planned.policy_steps)
        rate = config.critic_learning_rate or 10 * config.learning_rate
        strategy = launcher.strategy(
            start.source.path,
            policy,
            reference=start.reference,
            critic=replace(policy, learning_rate=rate, total_steps=planned.critic_steps)
            if planned.critic_steps
            else None,
            device=config.device,
        )
        log = metrics.MetricsLog(folder.path, tensorboard=config.tensorboard, trackers=trackers)
        trainer = Trainer(
            config, planned, agent, strategy, make_transfer(config.transfer, folder.path / "transfer"), start.tokenizer,
            folder, store, log, progress,
        )  # fmt: skip
        try:
            if start.saved is None:
                trainer.forget()
            else:
                trainer.resume(start.saved)
            try:
                with computing_with(trainer_threads(config)):
                    async with Watchdog(on_block=_Told(progress)):
                        await trainer.run()
            except EnvhubError:
                progress.tell(how_to_go_on(folder.path, "train"))
                raise
        finally:
            await trainer.pool.close()
            log.close()


def next_folder(environment: str, algorithm: str, root: Path = Path("runs")) -> Path:
    """The first free `runs/ENVIRONMENT-ALGORITHM-N`."""
    return numbered_folder(root, f"{environment.replace('/', '.')}-{algorithm}")
