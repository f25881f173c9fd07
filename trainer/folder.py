"""The folder of a run that is gone on with: is it one, what may change, and what a killed run left there."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from envhub.errors import UserError
from envhub.home import forget_unfinished
from envhub.records import read_json
from envhub.records.folder import CONFIG
from envhub.trainer import checkpoint, metrics, tracking
from envhub.trainer.config import TrainConfig
from envhub.trainer.progress import Progress

CHANGEABLE = (
    "steps", "learning_rate", "critic_learning_rate", "concurrency", "retries", "save_every", "keep", "best",
    "eval_every", "eval_tasks", "eval_samples", "eval_temperature", "eval_top_p", "eval_top_k", "track", "track_project",
)  # fmt: skip
"""The settings that a run may change when it goes on."""

_ANEW = "the run ended before its first checkpoint: starting from step 1"


def saved_config(folder: Path) -> dict[str, Any]:
    """The configuration that a training run has saved in its folder. Raises UserError where the folder is no such run."""
    return saved_settings(folder, TrainConfig, "training", ("env",))


def saved_settings(folder: Path, model: type[BaseModel], kind: str, needed: Sequence[str]) -> dict[str, Any]:
    """The settings that a run of a `kind` has saved in its folder; its `model` has no others, and one of `needed` is there.

    Raises UserError where the folder is no such run.
    """
    file = folder / CONFIG
    none = f"there is no {kind} run to resume in {folder}"
    if not file.is_file():
        raise UserError(f"{none}: it has no {CONFIG}")
    found = read_json(file)
    unknown = sorted(found.keys() - model.model_fields.keys())
    if unknown:
        raise UserError(f"{none}: its {CONFIG} has {unknown[0]!r}, which is no setting of a {kind} run")
    if all(found.get(name) is None for name in needed):
        raise UserError(f"{none}: its {CONFIG} names no {' or '.join(needed)}")
    return found


def refuse_fixed(chosen: Collection[str], changeable: Collection[str], config: Path | None) -> None:
    """Raise UserError for a setting that a run may not change when it goes on, and for a configuration of its own."""
    fixed = sorted(set(chosen) - set(changeable))
    if fixed or config is not None:
        flag = f"--{fixed[0].replace('_', '-')}" if fixed else "--config"
        raise UserError(f"a resumed run keeps its configuration: leave out {flag}, or start a new run")


def sweep(path: Path) -> None:
    """Remove what a killed run left half written in its folder."""
    for file in (CONFIG, metrics.FILE, tracking.FILE):
        forget_unfinished(path / file)
    checkpoint.sweep(path / "checkpoints")


def newest(path: Path) -> checkpoint.Checkpoint | None:
    """The newest checkpoint of a run, where there is one."""
    done = checkpoint.finished(path / "checkpoints")
    return done[-1] if done else None


def go_on_after(saved: checkpoint.Checkpoint | None, path: Path, progress: Progress, steps: int) -> None:
    """Drop the rows of metrics of later steps than a checkpoint's, and say where the run of so many steps goes on.

    Raises UserError where it has made more of them already, DataError for damaged metrics.
    """
    made = "" if saved is None else "1 step" if saved.step == 1 else f"{saved.step} steps"
    if saved is not None and saved.step > steps:
        raise UserError(f"{path} has made {made} already; give --steps {saved.step + 1} or more to go on")
    dropped = metrics.forget_after(path, -1 if saved is None else saved.step)
    progress.say(_ANEW if saved is None else f"going on after {_named(saved)}")
    if saved is not None and saved.step == steps:
        progress.say(f"step {steps} of {steps} is made: nothing is left to train")
    if dropped:
        progress.warn(dropped)


def how_to_go_on(path: Path, command: str) -> str:
    """A line for a run that was stopped: what is saved, and the command that goes on with it."""
    saved = newest(path)
    state = f"{_named(saved)} is saved" if saved is not None else "no step is saved"
    return f"stopped; {state}; go on with: envhub {command} --resume {shlex.quote(str(path))}"


def _named(saved: checkpoint.Checkpoint) -> str:
    """What a checkpoint is of: a step, or the warm start before the first."""
    return f"step {saved.step}" if saved.step else "the warm start"
