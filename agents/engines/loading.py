"""Load a model folder, and say which of its files is damaged and what to use instead."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from envhub.agents.engines import checkpoints
from envhub.errors import UserError
from envhub.guard import described

if TYPE_CHECKING:
    import torch


def load_causal_model(model: str, dtype: "torch.dtype", device: str) -> Any:
    """The causal language model of a folder (or of a hub's name) in `dtype` on `device`, its progress bars off.

    Raises UserError naming what went wrong, and for a damaged folder the file, where there is one, and the remedy; also
    where the files lack weights that the model has, which would otherwise be random.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    refuse_damaged(model)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, output_loading_info=True)
    except Exception as problem:  # what a damaged configuration raises is of any class
        advice = f"; {remedy(model)}" if _is_damage(model, problem) else ""
        raise UserError(f"transformers cannot load {model}: {described(problem)}{advice}") from problem
    module, info = loaded
    lacking = sorted(info["missing_keys"])
    if lacking:
        raise UserError(
            f"transformers cannot load {model}: its weights lack {len(lacking)} tensors, such as {lacking[0]!r}; "
            f"{remedy(model)}"
        )
    _mend_generation(module)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{model} has weights that are not finite, such as {name!r}; {remedy(model)}")
    try:
        return module.to(device)
    except (RuntimeError, AssertionError) as problem:  # no such device, or no room on it
        raise UserError(f"{model} cannot be put on device {device!r}: {problem}") from problem


def _mend_generation(module: Any) -> None:
    """Let a model say that it samples where it has settings of sampling, or transformers refuses to save it."""
    settings = getattr(module, "generation_config", None)
    if settings is None:
        return
    try:
        settings.validate(strict=True)
    except ValueError:
        settings.do_sample = True


def load_tokenizer(model: str | Path, advice: str = "") -> Any:
    """The tokenizer of a folder. Raises UserError naming the file that is damaged, and what to do: `advice`, or `remedy`."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model))
    except Exception as problem:  # what damaged files raise is of any class, and often Exception itself
        blamed = Path(model) / "tokenizer.json"
        what = f"{blamed} is damaged" if _is_no_tokenizer(blamed) else "its tokenizer does not load"
        remedied = "" if isinstance(problem, ImportError) else f"; {advice or remedy(model)}"
        raise UserError(f"cannot load {model}: {what}: {described(problem)}{remedied}") from problem


def _is_no_tokenizer(file: Path) -> bool:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(file))
    except Exception:  # the class that the library raises
        return file.is_file()
    return False


def refuse_damaged(model: str) -> None:
    """Raise UserError for the first safetensors file of a folder that cannot be opened. Reads headers only."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(Path(model).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except PermissionError as problem:
            raise UserError(f"cannot load {model}: {file} may not be read") from problem
        except (OSError, SafetensorError) as problem:
            raise UserError(f"cannot load {model}: {file} is damaged: {problem}; {remedy(model)}") from problem


def remedy(model: str | Path) -> str:
    """What to do about a model folder, or a checkpoint that holds one, that is damaged."""
    earlier = checkpoints.instead_of(Path(model))
    return f"use the earlier checkpoint {earlier}" if earlier is not None else "copy or save it again"


def _is_damage(model: str, problem: Exception) -> bool:
    """Whether the files of a local folder are to blame, and not what they are loaded with or onto."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    if not Path(model).is_dir() or isinstance(problem, PermissionError):
        return False
    if isinstance(problem, RuntimeError):
        return "size mismatch" in str(problem)
    blamed = (
        OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, SafetensorError, StrictDataclassError,
    )  # fmt: skip
    return isinstance(problem, blamed)
