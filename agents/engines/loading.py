"""Load a model folder, and say which of its files is damaged and what to use instead."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envhub.errors import UserError

if TYPE_CHECKING:
    import torch

_CHECKPOINT = re.compile(r"step-(\d+)")
_CHECKPOINT_FILE = "checkpoint.json"


def load_causal_model(model: str, dtype: "torch.dtype", device: str) -> Any:
    """The causal language model of a folder (or of a hub's name) in `dtype` on `device`, its progress bars off.

    Raises UserError naming the folder, the damaged file where there is one, and the remedy; also where the files lack
    weights that the model has, which would otherwise be random.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    refuse_damaged(model)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, output_loading_info=True)
    except Exception as problem:  # what a damaged configuration raises is of any class
        said = str(problem) or type(problem).__name__
        raise UserError(f"transformers cannot load {model}: {said}; {remedy(model)}") from problem
    module, info = loaded
    lacking = sorted(info["missing_keys"])
    if lacking:
        raise UserError(
            f"transformers cannot load {model}: its weights lack {len(lacking)} tensors, such as {lacking[0]!r}; "
            f"{remedy(model)}"
        )
    try:
        return module.to(device)
    except (RuntimeError, AssertionError) as problem:  # no such device, or no room on it
        raise UserError(f"{model} cannot be put on device {device!r}: {problem}") from problem


def refuse_damaged(model: str) -> None:
    """Raise UserError for the first safetensors file of a folder that cannot be opened. Reads headers only."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(Path(model).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as problem:
            raise UserError(f"cannot load {model}: {file} is damaged: {problem}; {remedy(model)}") from problem


def remedy(model: str | Path) -> str:
    """What to do about a model folder, or a checkpoint that holds one, that is damaged."""
    folder = Path(model)
    earlier = earlier_checkpoint(folder) or earlier_checkpoint(folder.parent)
    return f"use the earlier checkpoint {earlier}" if earlier is not None else "copy or save it again"


def earlier_checkpoint(folder: Path) -> Path | None:
    """The newest finished checkpoint beside a checkpoint's folder that is older than it; None where there is none."""
    own = _CHECKPOINT.fullmatch(folder.name)
    if own is None:
        return None
    steps = {path: _CHECKPOINT.fullmatch(path.name) for path in folder.parent.glob("step-*")}
    older = {
        int(match[1]): path
        for path, match in steps.items()
        if match is not None and int(match[1]) < int(own[1]) and (path / _CHECKPOINT_FILE).is_file()
    }
    return older[max(older)] if older else None
