"""The layout of a run's checkpoints, as the trainer writes them and a loader looks for an earlier one."""

import re
from pathlib import Path

META = "checkpoint.json"
"""The file that is written last: a folder without it is no finished checkpoint."""

BEST = "best"
"""The name of the link to the best checkpoint, beside the checkpoints."""

_NAME = re.compile(r"step-(\d+)")


def folder_name(step: int) -> str:
    """The name of the folder of a step's checkpoint."""
    return f"step-{step:06d}"


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint's folder, by its name; None where it is none."""
    match = _NAME.fullmatch(folder.name)
    return None if match is None else int(match[1])


def finished(folder: Path) -> list[tuple[int, Path]]:
    """Step and folder of the finished checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    return [(step, path) for step, path in sorted(found) if (path / META).is_file()]


def best(folder: Path) -> Path | None:
    """The checkpoint in a folder that the link to the best one names; None where there is none."""
    link = folder / BEST
    found = folder / link.readlink().name if link.is_symlink() else None
    return found if found is not None and (found / META).is_file() else None


def earlier(checkpoint: Path) -> Path | None:
    """The newest finished checkpoint beside a checkpoint's folder that is older than it; None where there is none."""
    if checkpoint.name == BEST:
        checkpoint = checkpoint.resolve()
    own = step_of(checkpoint)
    if own is None:
        return None
    older = [path for step, path in finished(checkpoint.parent) if step < own]
    return older[-1] if older else None


def instead_of(model: Path) -> Path | None:
    """The earlier checkpoint to use where the model of a checkpoint, or the checkpoint itself, is damaged; None: none."""
    return earlier(model) or earlier(model.parent)
