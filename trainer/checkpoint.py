"""Checkpoints: written beside the old ones, synced, then renamed, so that a reader finds a whole one or none."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from envhub import strict_json
from envhub.agents.engines import checkpoints
from envhub.agents.engines.loading import load_tokenizer
from envhub.agents.models import ModelError, ModelSource, resolve_model
from envhub.errors import UserError
from envhub.home import write_atomically
from envhub.ledger import Ledger, LedgerError
from envhub.trainer.strategy import Strategy

_STATE, _MODEL = "trainer.pt", "model"


class Place(BaseModel):
    """Where the task sampler was."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    position: int = Field(ge=0)
    seed: int = Field(ge=0)


class Meta(BaseModel):
    """What the loop saves with a checkpoint: finished steps, the sampler's place, the ledger, the weight version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = Field(ge=0)
    sampler: Place
    ledger: dict[str, int | dict[str, int]]
    version: int = Field(ge=0)
    kl_coef: float | None = Field(None, ge=0)

    def counts(self) -> Ledger:
        """The ledger. Raises ValueError or LedgerError where it is none."""
        try:
            return Ledger.from_dict(self.ledger)
        except (KeyError, TypeError) as problem:
            raise ValueError(f"ledger: {problem}") from None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A finished checkpoint of a step."""

    step: int
    path: Path

    @property
    def model(self) -> Path:
        """The model folder, in Hugging Face layout."""
        return self.path / _MODEL

    def meta(self) -> "Meta":
        """What the loop saved with it. Raises UserError when the file is damaged."""
        try:
            value = strict_json.loads((self.path / checkpoints.META).read_bytes())
            meta = Meta.model_validate(value, strict=True)
            if meta.step != self.step:
                raise ValueError(f"it is of step {meta.step}")
            meta.counts()
        except ValidationError as problem:
            first = problem.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise self.damaged(checkpoints.META, f"{place}: {first['msg']}") from None
        except (OSError, ValueError, LedgerError) as problem:
            raise self.damaged(checkpoints.META, problem) from problem
        return meta

    def source(self) -> ModelSource:
        """The model that was saved. Raises UserError when its folder is damaged."""
        try:
            return resolve_model(str(self.path))
        except ModelError as problem:
            raise self.damaged(_MODEL, problem) from problem

    def tokenizer(self) -> Any:
        """The tokenizer that was saved. Raises UserError when it is damaged."""
        return load_tokenizer(self.model, self._remedy())

    def restore(self, strategy: Strategy) -> None:
        """Let a strategy take up its state. Raises UserError when the file is damaged."""
        try:
            state = torch.load(self.path / _STATE, map_location="cpu", weights_only=True)
        except OSError as problem:
            raise self.damaged(_STATE, problem.strerror or problem) from problem
        except Exception as problem:  # damaged bytes make the unpickler raise errors of any class, pages long
            raise self.damaged(_STATE, f"it cannot be read ({type(problem).__name__})") from problem
        try:
            strategy.load_state(state)
        except ValueError as problem:
            raise self.damaged(_STATE, problem) from problem

    def damaged(self, file: str, problem: object) -> UserError:
        """The error for a damaged file of this checkpoint, with what to do about it."""
        said = " ".join(str(problem).split()) or type(problem).__name__
        return UserError(f"the checkpoint {self.path} is damaged: {self.path / file}: {said}; {self._remedy()}")

    def _remedy(self) -> str:
        earlier = checkpoints.earlier(self.path)
        if earlier is None:
            return "no earlier one is there, so start a new run"
        return f"remove {self.path} to go on from the earlier checkpoint {earlier}"


def save(folder: Path, strategy: Strategy, tokenizer: Any, meta: Meta, keep: int) -> Checkpoint:
    """Write the checkpoint of a step, then remove all but the newest `keep`. Raises UserError; the old ones stay then."""
    target = folder / checkpoints.folder_name(meta.step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".writing-*"):
            shutil.rmtree(leftover)
        writing = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
        try:
            strategy.save_model(writing / _MODEL)
            tokenizer.save_pretrained(writing / _MODEL)
            torch.save(strategy.state(), writing / _STATE)
            write_atomically(writing / checkpoints.META, meta.model_dump_json(indent=2))
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
    return Checkpoint(meta.step, target)


def finished(folder: Path) -> list[Checkpoint]:
    """The finished checkpoints of a run, oldest first."""
    return [Checkpoint(step, path) for step, path in checkpoints.finished(folder)]


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
