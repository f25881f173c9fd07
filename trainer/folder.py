"""The folder of a run that is gone on with: is it one, what may change, and what a killed run left there."""

from pathlib import Path
from typing import Any

from envhub.errors import UserError
from envhub.records import read_json
from envhub.records.folder import CONFIG
from envhub.trainer.config import TrainConfig

CHANGEABLE = (
    "steps", "learning_rate", "critic_learning_rate", "concurrency", "retries", "save_every", "keep", "best",
    "eval_every", "eval_tasks", "eval_samples", "eval_temperature", "eval_top_p", "eval_top_k", "track", "track_project",
)  # fmt: skip
"""The settings that a run may change when it goes on."""


def saved_config(folder: Path) -> dict[str, Any]:
    """The configuration that a training run has saved in its folder. Raises UserError where the folder is no such run."""
    file = folder / CONFIG
    none = f"there is no training run to resume in {folder}"
    if not file.is_file():
        raise UserError(f"{none}: it has no {CONFIG}")
    found = read_json(file)
    unknown = sorted(found.keys() - TrainConfig.model_fields.keys())
    if unknown:
        raise UserError(f"{none}: its {CONFIG} has {unknown[0]!r}, which is no setting of a training run")
    if "env" not in found:
        raise UserError(f"{none}: its {CONFIG} names no env")
    return found
