"""A whole run: open the folder, start the parts, train, close everything."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import torch

from envhub.agents.engines import choose_engine, make_engine
from envhub.agents.engines.precision import choose_device
from envhub.agents.executors import Executor, MultiTurnExecutor, SingleTurnExecutor, Watchdog
from envhub.agents.models import ModelSource, resolve_model
from envhub.agents.parsers import get_parser
from envhub.agents.session import open_agent
from envhub.driver import Driver
from envhub.errors import UserError
from envhub.limits import Limits
from envhub.records import RolloutStore, RunFolder, numbered_folder
from envhub.registry import spec as find_spec
from envhub.specs import EnvironmentSpec
from envhub.trainer import checkpoint, metrics
from envhub.trainer.algorithms import Algorithm, get_algorithm
from envhub.trainer.config import TrainConfig
from envhub.trainer.launcher import LocalLauncher
from envhub.trainer.loop import Trainer
from envhub.trainer.progress import Progress
from envhub.trainer.strategy import Optimization
from envhub.trainer.transfer import make_transfer

EXECUTORS: dict[str, type[Executor]] = {"multi_turn": MultiTurnExecutor, "single_turn": SingleTurnExecutor}


def plan(config: TrainConfig) -> tuple[Algorithm, EnvironmentSpec, Limits]:
    """Check all names and sizes of a configuration without starting anything. Raises UserError."""
    algorithm = get_algorithm(config.algo).with_options(
        kl_coef=config.kl_coef, clip_low=config.clip_low, clip_high=config.clip_high, aggregation=config.aggregation,
        correction=config.correction,
    )  # fmt: skip
    if algorithm.needs_groups and config.group_size < 2:
        raise UserError(
            f"algorithm {algorithm.name!r} compares the rollouts of a task: group_size is at least 2, not {config.group_size}"
        )
    found = find_spec(config.env)
    driver = Driver(found, config.env_config)
    limits = driver.limits.replace(
        max_turns=config.max_turns, max_turn_tokens=config.max_turn_tokens, max_episode_tokens=config.max_episode_tokens
    )
    if algorithm.aggregation == "constant_length" and algorithm.length is None:
        algorithm = algorithm.with_options(length=_longest(limits))
    engine = make_engine(config.engine, config.model, options=_engine_options(config))
    if engine.speaks != "tokens":
        raise UserError(f"engine {engine.name!r} gives text and no token ids, so nothing can be trained on it")
    if config.parser != "auto":
        get_parser(config.parser)
    choose_device(config.device)
    for split in (config.split, config.eval_split) if config.eval_tasks else (config.split,):
        driver.tasks.get(split, 0, config.seed)
    return algorithm, found, limits


def _longest(limits: Limits) -> int:
    """The most tokens that an episode may sample."""
    turns = limits.max_turns * limits.max_turn_tokens
    return turns if limits.max_episode_tokens is None else min(turns, limits.max_episode_tokens)


async def train(config: TrainConfig, *, resume: Path | None = None, progress: Progress | None = None) -> Path:
    """Train and return the run folder. `resume` is a run folder to go on with. Raises UserError."""
    progress = progress or Progress()
    algorithm, found, limits = plan(config)
    path = resume or config.output or next_folder(found.id, algorithm.name)
    initial = resolve_model(config.model, notify=progress.say)
    with (
        RunFolder.open(path, resume=resume is not None, what="training run") as folder,
        contextlib.ExitStack() as stack,
    ):
        log_file = logging.FileHandler(path / "run.log")
        logging.getLogger("envhub").addHandler(log_file)
        stack.callback(log_file.close)
        stack.callback(logging.getLogger("envhub").removeHandler, log_file)
        saved, source = None, initial
        if resume is not None:
            done = checkpoint.finished(path / "checkpoints")
            saved = done[-1] if done else None
            if saved is not None:
                saved.meta()
                source = saved.source()
            metrics.forget_after(path, saved.step if saved is not None else -1)
        progress.say(f"run folder: {path}")
        folder.write_config(config.model_dump(mode="json"))
        launcher = LocalLauncher()
        stack.callback(launcher.close)
        try:
            await _train(config, algorithm, found, limits, initial, source, folder, saved, launcher, progress)
        except asyncio.CancelledError:
            done = checkpoint.finished(path / "checkpoints")
            state = f"step {done[-1].step} is saved" if done else "no step is saved yet (see --save-every)"
            progress.say(f"stopped; {state}; go on with: envhub train --resume {path}")
            raise
    return path


async def _train(
    config: TrainConfig, algorithm: Algorithm, found: EnvironmentSpec, limits: Limits, initial: ModelSource,
    source: ModelSource, folder: RunFolder, saved: checkpoint.Checkpoint | None, launcher: LocalLauncher, progress: Progress,
) -> None:  # fmt: skip
    torch.manual_seed(config.seed)
    engine = choose_engine(config.engine)
    progress.say(f"model {initial.name}; starting engine {engine}")
    async with open_agent(
        str(source.path),
        engine,
        options=_engine_options(config),
        parser=config.parser,
        executor=EXECUTORS[config.executor],
    ) as agent:
        strategy = launcher.strategy(
            source.path,
            Optimization(
                learning_rate=config.learning_rate, weight_decay=config.weight_decay, clip_norm=config.clip_norm,
                micro_tokens=config.micro_tokens, precision=config.precision,
                gradient_checkpointing=config.gradient_checkpointing,
            ),
            reference=initial.path if algorithm.kl_coef else None,
            device=config.device,
        )  # fmt: skip
        with RolloutStore(folder.path / "rollouts.sqlite") as store:
            log = metrics.MetricsLog(folder.path, tensorboard=config.tensorboard)
            trainer = Trainer(
                config, algorithm, found, limits, agent, strategy, make_transfer(config.transfer, folder.path / "transfer"),
                _tokenizer(source.path), folder, store, log, progress,
            )  # fmt: skip
            if saved is None:
                trainer.forget()
            else:
                trainer.resume(saved)
                progress.say(f"going on after step {saved.step}")
            try:
                async with Watchdog():
                    await trainer.run()
            finally:
                await trainer.pool.close()
                log.close()


_SEEDED = ("vllm", "transformers", "scripted")


def _engine_options(config: TrainConfig) -> dict[str, Any]:
    seed = {"seed": config.seed} if choose_engine(config.engine) in _SEEDED else {}
    return {**seed, **config.engine_options}


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def next_folder(environment: str, algorithm: str, root: Path = Path("runs")) -> Path:
    """The first free `runs/ENVIRONMENT-ALGORITHM-N`."""
    return numbered_folder(root, f"{environment.replace('/', '.')}-{algorithm}")
