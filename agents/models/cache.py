"""The user's cache of built models: each folder is built once, by one process, and appears complete or not at all."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from envhub.agents.models.checks import ModelError, check_model_folder
from envhub.home import expanded, folder_beside

_LOCK_DEADLINE = 900.0
_LOCK_POLL = 0.1


def cache_root() -> Path:
    """`$ENVHUB_CACHE`, else `$XDG_CACHE_HOME/envhub`, else `~/.cache/envhub`. Not created here. Raises UserError."""
    own = os.environ.get("ENVHUB_CACHE")
    if own:
        return expanded(own, "ENVHUB_CACHE").absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification asks for relative values to be ignored.
    return (Path(base) if base and Path(base).is_absolute() else expanded("~/.cache", "HOME")) / "envhub"


def cached_model(name: str, build: Callable[[Path], None]) -> Path:
    """The model folder `name` of the cache, built by `build(empty_folder)` when it is absent or damaged.

    Concurrent callers, in this process or others, wait for the one that builds. Raises ModelError when the cache cannot
    be written, or when another process holds the lock for over 15 minutes.
    """
    root = cache_root() / "models"
    target = root / name
    if _is_sound(target):
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{name}.lock", name):
            if not _is_sound(target):
                _build(root, name, build)
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache {root}: {error.strerror or error}; "
            "make room or rights there, or set ENVHUB_CACHE to a folder that can be written"
        ) from error
    return target


def _build(root: Path, name: str, build: Callable[[Path], None]) -> None:
    for leftover in root.glob(f".{name}.building-*"):  # of builders that were killed: the lock is ours
        shutil.rmtree(leftover)
    with folder_beside(root / name, "building") as building:
        build(building)
        check_model_folder(building)
        if (root / name).exists():
            shutil.rmtree(root / name)


def _is_sound(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        check_model_folder(folder)
    except ModelError:
        return False
    return True


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_DEADLINE
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ModelError(
                        f"another process has been building the model {name!r} for {_LOCK_DEADLINE / 60:.0f} minutes "
                        f"and holds {path}; stop it and try again"
                    ) from None
                time.sleep(_LOCK_POLL)
        yield
