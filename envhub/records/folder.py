"""The folder that a run leaves: its configuration, metrics, rollouts, checkpoints, plots and log."""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO, Any

from envhub.errors import UserError
from envhub.home import write_atomically
from envhub.records.closing import Closing
from envhub.strict_json import dumps, loads

CONFIG = "config.json"
_LOCK = ".lock"


class RunFolder(Closing):
    """A run's folder, locked while the run lives, so that two runs never write to one folder.

    `open` makes it, or takes up one that exists when `resume` is given. Raises UserError for a folder that exists, is in
    use, cannot be written, or holds something else.
    """

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, resume: bool = False, what: str = "run", remedy: str = "") -> "RunFolder":
        """Make the folder and lock it. In errors `what` names the kind of run, and `remedy` says what to do about a folder
        that holds something already."""
        taken = UserError(
            f"the folder {path} exists; {remedy or f'go on with that {what} (--resume), or give another name'}"
        )
        try:
            exists = path.exists()
            if exists and not path.is_dir():
                raise UserError(f"{path} is a file; name another folder for the {what}")
            if exists and not resume and _holds_something(path) and not (path / _LOCK).exists():
                raise taken
            if resume and not (path / CONFIG).is_file():
                raise UserError(f"there is no {what} to resume in {path}: it has no {CONFIG}")
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / _LOCK).open("ab+", buffering=0)
        except OSError as problem:
            raise UserError(f"cannot write the {what}'s folder {path}: {problem.strerror}") from problem
        with contextlib.ExitStack() as stack:
            stack.callback(lock.close)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not resume and _holds_something(path):  # asked again under the lock: another run may have just ended
                    raise taken
                lock.truncate(0)
                lock.write(f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().decode(errors="replace").strip() or "another process"
                raise UserError(f"the folder {path} is in use by {holder}; wait for it or give another name") from None
            except OSError as problem:  # a file system without locks, or without room
                raise UserError(f"cannot lock the {what}'s folder {path} ({_LOCK}): {problem.strerror}") from problem
            stack.pop_all()
        return cls(path, lock)

    def write_config(self, config: dict[str, Any]) -> None:
        """Save the run's resolved configuration."""
        write_atomically(self.path / CONFIG, dumps(config, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """The saved configuration. Raises UserError when it is damaged."""
        return read_json(self.path / CONFIG)

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()


def _holds_something(path: Path) -> bool:
    """Whether there is more than what a run leaves that was killed at once: its lock, and an unfinished configuration."""
    return any(item.name != _LOCK and not item.name.startswith(f".{CONFIG}.") for item in path.iterdir())


def numbered_folder(root: Path, stem: str) -> Path:
    """The first free `root/stem-N`, N from 1. Not made here."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises UserError naming the file."""
    try:
        value = loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"cannot read {path}: {problem.strerror}") from problem
    except ValueError as problem:
        raise UserError(f"{path} is damaged: {problem}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return value
