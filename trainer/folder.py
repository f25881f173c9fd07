"""The folder of a run that is gone on with: is it one, what may change, and what a killed run left there."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from envhub.errors import UserError
from envhub.records import read_json
from envhub.records.folder import CONFIG
from envhub.trainer import checkpoint
from envhub.trainer.config import TrainConfig

CHANGEABLE = (
    "steps", "learning_rate", "critic_learning_rate", "concurrency", "retries", "save_every", "keep", "best",
    "eval_every", "eval_tasks", "eval_samples", "eval_temperature", "eval_top_p", "eval_top_k", "track", "track_project",
)  # fmt: skip
"""The settings that a run may change when it goes on."""

ANEW = "the run ended before its first checkpoint: starting from step 1"


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


def how_to_go_on(path: Path, command: str) -> str:
    """A line for a run that was stopped: what is saved, and the command that goes on with it."""
    done = checkpoint.finished(path / "checkpoints")
    state = f"{named(done[-1].step)} is saved" if done else "no step is saved"
    return f"stopped; {state}; go on with: envhub {command} --resume {shlex.quote(str(path))}"


def named(step: int) -> str:
    """What a checkpoint is of: a step, or the warm start before the first."""
    return f"step {step}" if step else "the warm start"
