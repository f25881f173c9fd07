"""Slots: cgroups that bound what all processes of a box take together, where the machine lets one make them.

A slot is made with the first box of a user id and used again by later ones, since making and removing one takes longer than a
box runs. Its folder's name says whose it is, so that those of a process that was killed are found and removed by the next.
"""

import contextlib
import functools
import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envhub.sandbox import leases

_PREFIX = "envhub-slot"
_numbers = itertools.count()
_REMOVING = 5.0  # seconds for the processes of a slot to be gone
PLACE = "ENVHUB_CGROUP"
"""Names a folder of the unified hierarchy that was handed to envhub, in which slots are made."""


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """A folder in which slots can be made, and which of memory and pids it controls."""

    parent: Path
    controls: tuple[str, ...]
    unified: bool

    @property
    def limits(self) -> dict[str, tuple[str, ...]]:
        """The files that bound memory in bytes (later ones are no less than earlier ones), and processes."""
        memory = ("memory.max",) if self.unified else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        return {name: files for name, files in (("memory", memory), ("pids", ("pids.max",))) if name in self.controls}


@dataclass(slots=True)
class Slot:
    """Whoever writes `0` to its `joins` belongs to it from then on, with all processes that it makes."""

    folders: dict[Path, _Hierarchy]
    joins: list[int] = field(default_factory=list)
    _set: tuple[int, int, bool] = (0, 0, True)
    _killed: int = 0

    def bound(self, megabytes: int, processes: int, *, together: bool = True) -> None:
        """Bound what the next box takes; counts of what happens in it begin at 0. Raises OSError.

        `together` lets all of its processes die where they take more, and not one alone, where the kernel can.
        """
        if self._set != (megabytes, processes, together):
            for folder, hierarchy in self.folders.items():
                for name, files in hierarchy.limits.items():
                    _write_all(folder, files, megabytes << 20 if name == "memory" else processes)
                if hierarchy.unified and "memory" in hierarchy.controls:
                    (folder / "memory.oom.group").write_text(str(int(together)))
            self._set = megabytes, processes, together
        self.count_anew()

    def count_anew(self) -> None:
        """Let `out_of_memory` tell of what happens from here on."""
        self._killed = self._kills()

    def out_of_memory(self) -> bool:
        """Whether a process of the box was killed since all of them took more than they may."""
        return self._kills() > self._killed

    def _kills(self) -> int:
        for folder, hierarchy in self.folders.items():
            if "memory" in hierarchy.controls:
                text = (folder / ("memory.events" if hierarchy.unified else "memory.oom_control")).read_text()
                return int(next((line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")), 0))
        return 0

    @property
    def is_there(self) -> bool:
        """Whether it can still be joined; whoever manages a machine's cgroups may have removed it while it was empty."""
        return all(folder.exists() for folder in self.folders)

    def open(self) -> None:
        """Make its folders. Raises OSError."""
        for folder, hierarchy in self.folders.items():
            folder.mkdir(exist_ok=True)
            if hierarchy.unified and "memory" in hierarchy.controls:
                with contextlib.suppress(OSError):  # a kernel without swap accounting
                    (folder / "memory.swap.max").write_text("0")
            self.joins.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    def close(self) -> None:
        """Remove its folders, with whatever still runs in them."""
        for fd in self.joins:
            os.close(fd)
        self.joins.clear()
        for folder in self.folders:
            remove(folder)


class Slots:
    """The slots of one process. Where no place for them is found, `missing` says why, and there are none."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._number = next(_numbers)  # each has slots of its own, which nobody else removes
        self._lock = threading.Lock()
        self._hierarchies, self.missing = places()
        weakref.finalize(self, _close_all, self._slots, os.getpid())  # of a sandbox that nobody closed, too

    def __bool__(self) -> bool:
        return not self.missing

    def take(self, uid: int) -> Slot:
        """The slot of a user id. Raises OSError."""
        with self._lock:
            slot = self._slots.get(uid)
            if slot is not None and not slot.is_there:
                slot.close()
                slot = None
            if slot is None:
                name = f"{_PREFIX}-{leases.label()}-{uid}.{self._number}"
                slot = self._slots[uid] = Slot({hierarchy.parent / name: hierarchy for hierarchy in self._hierarchies})
                slot.open()
            return slot

    def close(self) -> None:
        """Remove all."""
        _close_all(self._slots, os.getpid())


def _close_all(slots: dict[int, Slot], owner: int) -> None:
    """Remove slots, if this is the process that made them and no fork of it."""
    while slots and os.getpid() == owner:
        slots.popitem()[1].close()


@functools.cache
def places() -> tuple[tuple[_Hierarchy, ...], str]:
    """Where slots can be made, and what is missing on this machine where memory cannot be bounded. Tried out once."""
    found: list[_Hierarchy] = []
    needed = {"memory", "pids"}
    for hierarchy in _candidates():
        if not set(hierarchy.controls) & needed:
            continue
        wanted = tuple(name for name in hierarchy.controls if name in needed)
        candidate = _Hierarchy(hierarchy.parent, wanted, hierarchy.unified)
        if _works(candidate):
            found.append(candidate)
            needed -= set(wanted)
    if "memory" in needed:
        return (), (
            "no memory cgroup can be made here (it needs a writable cgroup file system; in a container of the unified "
            f"hierarchy hand a folder over by {PLACE})"
        )
    return tuple(found), ""


def remove(folder: Path) -> None:
    """Remove a slot's folder; processes in it are killed."""
    deadline = time.monotonic() + _REMOVING
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            for pid in _members(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        else:
            return


def abandoned() -> list[Path]:
    """The folders of slots whose process is gone."""
    parents = {hierarchy.parent for hierarchy in places()[0]}
    return [folder for parent in parents for folder in parent.glob(f"{_PREFIX}-*") if leases.is_gone(folder.name)]


def _members(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _write_all(folder: Path, files: tuple[str, ...], value: int) -> None:
    """Write a limit to files of which each is to be no less than the one before it."""
    present = [folder / name for name in files if (folder / name).exists()]
    try:
        for file in present:
            file.write_text(str(value))
    except OSError:  # it is more than the last one is yet
        for file in reversed(present):
            file.write_text(str(value))


def _candidates() -> Iterator[_Hierarchy]:
    """Folders that may take slots, the best first."""
    given = os.environ.get(PLACE)
    if given:
        yield _Hierarchy(Path(given), tuple(_words(Path(given) / "cgroup.controllers")), unified=True)
    own = _own_groups()
    for controls, point, root, unified in _mounts():
        within = own.get("" if unified else controls[0] if controls else "?", "/")
        inside = within[len(root.rstrip("/")) :] if within.startswith(root.rstrip("/") + "/") else ""
        folder = point / inside.lstrip("/")
        if not unified:
            yield _Hierarchy(folder, controls, unified=False)
            continue
        while folder == point or point in folder.parents:
            yield _Hierarchy(folder, tuple(_words(folder / "cgroup.controllers")), unified=True)
            folder = folder.parent


def _own_groups() -> dict[str, str]:
    """This process's group in the hierarchy of each controller; that of the unified one under an empty name."""
    out: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            out |= dict.fromkeys(names.split(","), path)
    return out


def _mounts() -> Iterator[tuple[tuple[str, ...], Path, str, bool]]:
    """Controllers, mount point and root of each cgroup file system; unified ones have no controllers here."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.split(" ", 2)
            _, _, _, root, point, *_ = fields.split()
            if kind == "cgroup":
                named = tuple(name for name in options.split(",") if name in ("memory", "pids"))
                if named:
                    yield named, Path(point), root, False
            elif kind == "cgroup2":
                yield (), Path(point), root, True


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _works(hierarchy: _Hierarchy) -> bool:
    """Whether a slot can be made there, and bounded."""
    parent = hierarchy.parent
    if hierarchy.unified and not set(hierarchy.controls) <= set(_words(parent / "cgroup.subtree_control")):
        try:
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in hierarchy.controls))
        except OSError:
            return False
    trial = Slot({parent / f"{_PREFIX}-{leases.label()}-trial": hierarchy})
    try:
        trial.open()
        trial.bound(64, 16)
    except (OSError, ValueError):
        return False
    else:
        return True
    finally:
        trial.close()
