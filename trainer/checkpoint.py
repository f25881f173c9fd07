"""Checkpoints: written beside the old ones, synced, then renamed, so that a reader finds a whole one or none."""

import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from envhub.errors import UserError
from envhub.home import write_atomically
from envhub.records import read_json
from envhub.trainer.strategy import Strategy

_NAME = re.compile(r"step-(\d+)")
_META, _STATE, _MODEL = "checkpoint.json", "trainer.pt", "model"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A finished checkpoint of a step."""

    step: int
    path: Path

    @property
    def model(self) -> Path:
        """The model folder, in Hugging Face layout."""
        return self.path / _MODEL

    def meta(self) -> dict[str, Any]:
        """What the loop saved with it."""
        return read_json(self.path / _META)

    def state(self) -> dict[str, Any]:
        """The strategy's state. Raises UserError when the file is damaged."""
        try:
            loaded: dict[str, Any] = torch.load(self.path / _STATE, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as problem:
            raise UserError(f"the checkpoint {self.path} is damaged: {_STATE}: {problem}") from problem
        return loaded


def save(folder: Path, step: int, strategy: Strategy, tokenizer: Any, meta: Mapping[str, Any], keep: int) -> Checkpoint:
    """Write the checkpoint of a step, then remove all but the newest `keep`. Raises UserError; the old ones stay then."""
    import json

    target = folder / f"step-{step:06d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".writing-*"):
            shutil.rmtree(leftover)
        writing = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
        try:
            strategy.save_model(writing / _MODEL)
            tokenizer.save_pretrained(writing / _MODEL)
            torch.save(strategy.state(), writing / _STATE)
            write_atomically(writing / _META, json.dumps({"step": step, **meta}, indent=2, default=str))
            _sync(writing)
            writing.chmod(0o755)
            if target.exists():
                shutil.rmtree(target)
            writing.rename(target)
            _sync_folder(folder)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
    except (OSError, RuntimeError, SafetensorError) as problem:
        raise UserError(f"cannot write the checkpoint {target}: {problem}; earlier checkpoints are whole") from problem
    for old in finished(folder)[:-keep]:
        shutil.rmtree(old.path, ignore_errors=True)
    return Checkpoint(step, target)


def finished(folder: Path) -> list[Checkpoint]:
    """The finished checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [Checkpoint(step, path) for step, path in sorted(found) if (path / _META).is_file()]


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
