"""Where envhub keeps the user's own things, and how files there are written."""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from envhub.errors import UserError


def home() -> Path:
    """`$ENVHUB_HOME`, else `$XDG_CONFIG_HOME/envhub`, else `~/.config/envhub`. Not created here. Raises UserError."""
    own = os.environ.get("ENVHUB_HOME")
    if own:
        return expanded(own, "ENVHUB_HOME").absolute()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base and Path(base).is_absolute() else expanded("~/.config", "HOME")) / "envhub"


def expanded(path: str | Path, what: str = "") -> Path:
    """A path with `~` and `~user` replaced. Raises UserError, naming `what` gave it, where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        given = f"{what}: " if what else ""
        raise UserError(f"{given}{str(path)!r} begins with a home folder that is not there; write it out") from None


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside the old one, sync it, then rename it over the old one. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}") from problem


@contextlib.contextmanager
def folder_beside(target: Path, mark: str) -> Iterator[Path]:
    """A folder to fill, which is renamed to `target` at the end of the block, or removed where the block raises.

    Until then its name begins with `.NAME.MARK-`. Nothing may stand at `target` when the block ends. Raises OSError.
    """
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.{mark}-", dir=target.parent))
    try:
        made.chmod(0o755)
        yield made
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def forget_unfinished(path: Path) -> None:
    """Remove what `write_atomically` left beside a file in processes that were killed. Nobody else may be writing it."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            leftover.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file (made where it is missing) while the block runs; waits for other holders."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}") from problem
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
