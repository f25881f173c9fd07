"""Checkpoints: written beside the old ones, synced, then renamed, so that a reader finds a whole one or none.

Whatever the moment at which a process is killed, every folder with the name of a checkpoint is whole: one is written
under another name, and one that is to go gets another name before its first file goes.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from envhub.trainer.origin import Origin
from envhub.trainer.strategy import Strategy

_STATE, _MODEL = "trainer.pt", "model"
_WRITING, _REMOVING, _LINKING = ".writing-", ".removing-", ".linking-"
_FULL = 1 << 20  # bytes that are left on a disk that has no room


class Place(BaseModel):
    """Where the task sampler was."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    position: int = Field(ge=0)
    seed: int = Field(ge=0)


class Meta(BaseModel):
    """What the loop saves with a checkpoint: finished steps, the sampler's place, the ledger, the weight version.

    `skipped` and `empty` count the last updates in a row that were not finite, and steps without a rollout; `origin` says
    of what run it is, where it can be gone on with, `samples` what a supervised run learns from; `trained` describes the parameters that are trained, and `files` are
    the sizes in bytes of all other files.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = Field(ge=0)
    sampler: Place
    ledger: dict[str, int | dict[str, int]]
    version: int = Field(ge=0)
    kl_coef: float | None = Field(None, ge=0)
    skipped: int = Field(0, ge=0)
    empty: int = Field(0, ge=0)
    origin: Origin | None = None
    samples: str = ""
    trained: str = ""
    files: dict[str, int] = Field(default_factory=dict)

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
        """The model folder, in Hugging Face layout, or that of the adapter, in PEFT's."""
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

    def check(self) -> "Meta":
        """What the loop saved with it, once all files have the sizes that they had. Raises UserError naming another one."""
        meta = self.meta()
        for name, size in meta.files.items():
            try:
                found = (self.path / name).stat().st_size
            except OSError as problem:
                raise self.damaged(name, problem.strerror or problem) from problem
            if found != size:
                raise self.damaged(name, f"it has {found} bytes, and had {size} when it was saved")
        return meta

    def refuse_another(self, run: Origin) -> None:
        """Raise UserError where it is not of this run."""
        saved = self.meta().origin
        if saved is not None and (difference := saved.difference(run)):
            raise UserError(
                f"the checkpoint {self.path} is of another configuration: {difference}; set that back in the run's "
                "config.json, or start a new run"
            )

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
        """Let a strategy take up its state. Raises UserError when the file is damaged, or of other parameters."""
        saved, own = self.meta().trained, strategy.trained()
        if saved and saved != own:
            raise UserError(
                f"the checkpoint {self.path} is of another model: {saved} are trained in it, and {own} in this run; set the "
                "model back in the run's config.json, or start a new run"
            )
        try:
            state = torch.load(self.path / _STATE, map_location="cpu", weights_only=True)
        except OSError as problem:
            raise self.damaged(_STATE, problem.strerror or problem) from problem
        except Exception as problem:  # damaged bytes make the unpickler raise errors of any class, pages long
            raise self.damaged(_STATE, f"it cannot be read ({type(problem).__name__})") from problem
        try:
            strategy.load_adapter(self.model)
        except ValueError as problem:
            raise self.damaged(_MODEL, problem) from problem
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
    """Write the checkpoint of a step, then remove all but the newest `keep` and the best.

    Raises UserError where it cannot be written; the old ones stay then.
    """
    target = folder / checkpoints.folder_name(meta.step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        writing = Path(tempfile.mkdtemp(prefix=_WRITING, dir=folder))
        try:
            strategy.save_model(writing / _MODEL)
            _save_tokenizer(tokenizer, writing / _MODEL)
            with ThreadPoolExecutor(1) as beside:  # the disk takes up the model while the state is written
                synced = beside.submit(_sync, writing / _MODEL)
                torch.save(strategy.state(), writing / _STATE)
            synced.result()
            sizes = {str(file.relative_to(writing)): file.stat().st_size for file in _files(writing)}
            described = meta.model_copy(update={"files": sizes, "trained": strategy.trained()})
            write_atomically(writing / checkpoints.META, described.model_dump_json(indent=2))
            _sync(writing)
            writing.chmod(0o755)
            if target.exists():
                _remove(target)
            writing.rename(target)
            _sync_folder(folder)
        except BaseException as problem:
            full = isinstance(problem, Exception) and shutil.disk_usage(folder).free < _FULL
            shutil.rmtree(writing, ignore_errors=True)
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from problem
            raise
    except (OSError, RuntimeError, SafetensorError, UserError) as problem:
        said = (isinstance(problem, OSError) and problem.strerror) or " ".join(str(problem).split())
        raise UserError(f"cannot write the checkpoint {target}: {said}; earlier checkpoints are whole") from problem
    rotate(folder, keep)
    return Checkpoint(meta.step, target)


def rotate(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep` and the best. What cannot be removed stays."""
    best = checkpoints.best(folder)
    for old in finished(folder)[:-keep]:
        if old.path != best:
            with contextlib.suppress(OSError):
                _remove(old.path)


def point_to_best(saved: Checkpoint) -> None:
    """Let the link `best` beside a checkpoint lead to it, at one stroke. Raises UserError."""
    folder, name = saved.path.parent, saved.path.name
    link = folder / checkpoints.BEST
    if checkpoints.best(folder) == saved.path:
        return
    try:
        fresh = Path(tempfile.mkdtemp(prefix=_LINKING, dir=folder)) / name
        fresh.symlink_to(name)
        if link.is_dir() and not link.is_symlink():  # a copy of the run that followed the link
            _remove(link)
        fresh.replace(link)
        fresh.parent.rmdir()
        _sync_folder(folder)
    except OSError as problem:
        raise UserError(
            f"cannot link {link} to {name}: {problem.strerror}; earlier checkpoints are whole; where the disk has no links, "
            "set best to none"
        ) from problem


def sweep(folder: Path) -> None:
    """Remove what a killed run was writing or removing."""
    for start in (_WRITING, _REMOVING, _LINKING):
        for leftover in folder.glob(f"{start}*"):
            shutil.rmtree(leftover, ignore_errors=True)


def finished(folder: Path) -> list[Checkpoint]:
    """The finished checkpoints of a run, oldest first."""
    return [Checkpoint(step, path) for step, path in checkpoints.finished(folder)]


def _remove(path: Path) -> None:
    """Remove a folder, which at one stroke has its name no more."""
    aside = Path(tempfile.mkdtemp(prefix=_REMOVING, dir=path.parent))
    path.rename(aside / path.name)
    shutil.rmtree(aside, ignore_errors=True)


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as problem:  # the class that the tokenizers' library raises where it cannot write
        raise OSError(f"tokenizer: {problem}") from problem


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


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
