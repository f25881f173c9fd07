"""Is a folder a usable model? Reads headers and small files only, imports nothing heavy, and says what to repair."""

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envhub.errors import UserError

_MAX_HEADER = 100_000_000  # the limit of the safetensors format
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_SAMPLES, _SAMPLE_BYTES = 64, 4096


class ModelError(UserError):
    """A model that cannot be used; the message names the file and the remedy."""


def check_model_folder(folder: Path) -> None:
    """Raise ModelError unless `folder` holds a whole model: configuration, tokenizer, chat template and weights."""
    if not folder.exists():
        raise ModelError(f"model folder {folder} does not exist")
    if not folder.is_dir():
        raise ModelError(f"model {folder} is a file; name the folder that holds config.json and the weights")
    if not (folder / "config.json").is_file():
        raise ModelError(f"model folder {folder} has no config.json; {_instead_of_config(folder)}")
    config = _read_json(folder / "config.json")
    if not config.get("model_type"):
        raise ModelError(f"{folder / 'config.json'} names no model_type; save the model with save_pretrained")
    check_tokenizer(folder)
    check_weights(folder)


def check_tokenizer(folder: Path) -> None:
    """Raise ModelError unless `folder` holds a tokenizer that has a chat template."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"model folder {folder} has no tokenizer; save it there with tokenizer.save_pretrained({str(folder)!r})"
        )
    if (folder / "tokenizer.json").is_file():
        _read_json(folder / "tokenizer.json")
    templates = [folder / "chat_template.jinja", folder / "chat_template.json"]
    has_template = any(path.is_file() and _read_text(path).strip() for path in templates)
    if not has_template and (folder / "tokenizer_config.json").is_file():
        has_template = bool(_read_json(folder / "tokenizer_config.json").get("chat_template"))
    if not has_template:
        raise ModelError(
            f"the tokenizer in {folder} has no chat template, so messages cannot be turned into its tokens; "
            "put one there as chat_template.jinja (a base model has none: use its instruct or chat version)"
        )


def check_weights(folder: Path) -> list[Path]:
    """The safetensors files of a model. Raises ModelError when one is missing, cut off or damaged."""
    index_file = folder / "model.safetensors.index.json"
    expected: dict[str, str] = {}
    if index_file.is_file():
        weight_map = _read_json(index_file).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index_file} has no weight_map; copy or save the model again")
        expected = weight_map
        files = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        other = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.gguf"))
        found = f" ({other[0].name} cannot be used)" if other else ""
        raise ModelError(
            f"model folder {folder} has no *.safetensors weights{found}; save the model with "
            "save_pretrained(folder, safe_serialization=True)"
        )
    held: set[str] = set()
    for file in files:
        held |= set(check_safetensors(file))
    lacking = sorted(set(expected) - held)
    if lacking:
        raise ModelError(
            f"the weights in {folder} lack {len(lacking)} tensors, such as {lacking[0]!r}; copy them again"
        )
    return files


def check_safetensors(file: Path) -> dict[str, Any]:
    """The header of a safetensors file, by tensor name. Raises ModelError when the file is cut off or damaged."""
    again = "copy or save it again"
    if not file.is_file():
        raise ModelError(f"weights file {file} is missing; {again}")
    size = file.stat().st_size
    with file.open("rb") as handle:
        start = handle.read(8)
        if start == b"version ":
            raise ModelError(
                f"weights file {file} is a Git LFS pointer and not the weights; fetch it with: git lfs pull"
            )
        if len(start) < 8:
            raise ModelError(f"weights file {file} is cut off ({size} bytes); {again}")
        (length,) = struct.unpack("<Q", start)
        if length > _MAX_HEADER:
            raise ModelError(f"weights file {file} is damaged: its header is not that of a safetensors file; {again}")
        raw = handle.read(length)
    if len(raw) < length:
        raise ModelError(f"weights file {file} is cut off inside its header ({size} bytes); {again}")
    try:
        header = json.loads(raw)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ModelError(f"weights file {file} is damaged: its header cannot be read; {again}") from error
    if size < needed:
        raise ModelError(f"weights file {file} is cut off: {size} of {needed} bytes; {again}")
    if size > needed:
        raise ModelError(f"weights file {file} is damaged: {size - needed} bytes too many; {again}")
    header.pop("__metadata__", None)
    return dict(header)


def fingerprint(folder: Path) -> str:
    """16 hex digits that change with the configuration, the tokenizer, the chat template or the weights.

    Independent of the path. Of the weights, the headers and 64 evenly spaced blocks of each file are read, which tells
    apart trained versions of a model of any size in milliseconds.
    """
    digest = hashlib.sha256()
    names = ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja")
    for path in [folder / name for name in names if (folder / name).is_file()]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for path in check_weights(folder):
        digest.update(path.name.encode() + b"\0")
        for block in _sampled_blocks(path):
            digest.update(block)
    return digest.hexdigest()[:16]


def _sampled_blocks(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    yield size.to_bytes(8, "little")
    with file.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        yield handle.read(length)
        data = size - 8 - length
        for index in range(_SAMPLES):
            handle.seek(8 + length + data * index // _SAMPLES)
            yield handle.read(_SAMPLE_BYTES)


def _instead_of_config(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return f"it holds a LoRA adapter: merge it into its base model and use that (envhub merge {_run_of(folder)})"
    inside = sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("*/config.json"))
    if inside:
        return f"did you mean {folder / inside[-1]}?"
    return "name a folder in Hugging Face layout, as save_pretrained and envhub's checkpoints make it"


def _run_of(folder: Path) -> Path:
    """The run that a checkpoint's model is of; otherwise its checkpoint, or the folder itself."""
    if folder.name != "model":
        return folder
    return folder.parents[2] if folder.parents[1].name == "checkpoints" else folder.parent


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}); copy or save the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object; copy or save the model again")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is damaged: it is not UTF-8 text; copy or save the model again") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
