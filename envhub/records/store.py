"""Rollouts in SQLite: columns to select by, and the whole record to re-score and replay from."""

import contextlib
import errno
import math
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from envhub.errors import DataError, UserError, did_you_mean
from envhub.records.closing import Closing
from envhub.records.jsonl import encode, read_record
from envhub.rollout import Rollout
from envhub.strict_json import named

T = TypeVar("T")
_FULL = 1 << 16  # bytes that are left on a disk that has no room

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    phase TEXT NOT NULL,
    step INTEGER,
    environment TEXT NOT NULL,
    task TEXT NOT NULL,
    "group" TEXT NOT NULL,
    member INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    fault TEXT,
    reward REAL NOT NULL,
    turns INTEGER NOT NULL,
    action_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS rollouts_phase_step ON rollouts (phase, step);
CREATE INDEX IF NOT EXISTS rollouts_task ON rollouts (task);
"""
_INSERT = f"INSERT OR REPLACE INTO rollouts VALUES (NULL{', ?' * 15})"


class RolloutStore(Closing):
    """A SQLite file of rollouts. Every `add` is committed; readers in other processes see it at once.

    Raises UserError when the file cannot be opened or written, DataError when it holds something else.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        try:
            if read_only and not path.is_file():
                raise DataError(f"no rollouts at {path}: there is no such file")
            place: str | Path = f"{path.absolute().as_uri()}?mode=ro" if read_only else path
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(place, uri=read_only, check_same_thread=False)
            with contextlib.ExitStack() as stack:
                stack.callback(self.close)
                if read_only:
                    self._database.execute("SELECT count(*) FROM rollouts")
                else:
                    self._database.executescript(_SCHEMA)
                    self._database.execute("PRAGMA journal_mode=WAL")
                stack.pop_all()
        except sqlite3.DatabaseError as problem:
            raise DataError(f"{path} is no rollout database that can be opened: {problem}") from problem
        except OSError as problem:
            raise UserError(f"cannot write {path}: {problem.strerror}") from problem

    def add(self, rollout: Rollout, *, phase: str = "eval", step: int | None = None) -> None:
        """Store a rollout; one with the same id is replaced. `phase` is `train`, `eval`, or a name of the caller's."""
        self.add_all([rollout], phase=phase, step=step)

    def add_all(self, rollouts: Sequence[Rollout], *, phase: str, step: int | None = None) -> None:
        """Store several as `add` does; all at once, or none."""
        rows = [_row(rollout, phase, step, _record(rollout)) for rollout in rollouts]
        try:
            with self._database:
                self._database.executemany(_INSERT, rows)
        except sqlite3.Error as problem:
            raise self._unwritten(problem) from problem

    def check(self) -> None:
        """Read the whole file. Raises DataError where it is damaged."""
        for (problem,) in self._select("PRAGMA quick_check(1)"):
            if problem != "ok":
                raise DataError(f"{self.path} is damaged: {problem.splitlines()[-1]}")

    def records(self) -> dict[str, str]:
        """The JSON text of every rollout by its id, in the order in which they were added. Raises DataError."""
        self.check()
        return dict(self._select("SELECT id, record FROM rollouts ORDER BY number"))

    def replace_all(self, rollouts: Sequence[Rollout], *, phase: str) -> None:
        """Hold these rollouts and no others; all at once, or not at all. Raises UserError."""
        rows = [_row(rollout, phase, None, _record(rollout)) for rollout in rollouts]
        try:
            with self._database:
                self._database.execute("DELETE FROM rollouts")
                self._database.executemany(_INSERT, rows)
        except sqlite3.Error as problem:
            raise self._unwritten(problem) from problem

    def get(self, id: str) -> Rollout:
        """The rollout of an id, or of a prefix of it that is unique. Raises UserError."""
        wanted = _column(id)
        rows = list(
            self._select("SELECT id, record FROM rollouts WHERE substr(id, 1, length(?1)) = ?1 OR id = ?1", wanted)
        )
        exact = [row for row in rows if row[0] == wanted]
        if len(exact or rows) == 1:
            return self._read(*(exact or rows)[0])
        if rows:
            raise UserError(f"{len(rows)} rollouts in {self.path} begin with {id!r}; give more of the id")
        known = [row[0] for row in self._select("SELECT id FROM rollouts LIMIT 10000")]
        raise UserError(f"no rollout {id!r} in {self.path}, which holds {self.count()}{did_you_mean(id, known)}")

    def iterate(self, *, phase: str | None = None, step: int | None = None) -> Iterator[Rollout]:
        """The rollouts in the order in which they were added, all or those of a phase and step."""
        query = (
            "SELECT id, record FROM rollouts WHERE (?1 IS NULL OR phase = ?1) AND (?2 IS NULL OR step = ?2) "
            "ORDER BY number"
        )
        for id, record in self._select(query, phase, step):
            yield self._read(id, record)

    def _select(self, query: str, *values: object) -> Iterator[Any]:
        try:
            yield from self._database.execute(query, values)
        except sqlite3.DatabaseError as problem:
            raise DataError(f"{self.path} is damaged: {problem}") from problem

    def _read(self, id: str, record: str) -> Rollout:
        try:
            return read_record(record)
        except ValueError as problem:
            raise DataError(f"{self.path}, rollout {id!r}: no rollout record: {problem}") from None

    def count(self, phase: str | None = None) -> int:
        """How many rollouts there are."""
        query = "SELECT count(*) FROM rollouts WHERE ?1 IS NULL OR phase = ?1"
        return sum(row[0] for row in self._select(query, phase))

    def drop_after(self, phase: str, step: int, *, environment: str | None = None, keep: int = 0) -> int:
        """Forget the rollouts of a phase, all or those of an environment, that belong to later steps: they are made again.

        The first `keep` of them stay. Returns how many went. Raises UserError.
        """
        chosen = "phase = ?1 AND step > ?2 AND (?3 IS NULL OR environment = ?3)"
        kept = f"SELECT number FROM rollouts WHERE {chosen} ORDER BY number LIMIT ?4"
        values = (phase, step, environment and _column(environment), keep)
        try:
            with self._database:
                query = f"DELETE FROM rollouts WHERE {chosen} AND number NOT IN ({kept})"
                return self._database.execute(query, values).rowcount
        except sqlite3.Error as problem:
            raise self._unwritten(problem) from problem

    def _unwritten(self, problem: sqlite3.Error) -> UserError:
        """The error where the file cannot be written. Where a disk is full, SQLite often says no more than I/O error."""
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self.path.parent).free < _FULL:
                return UserError(f"cannot write {self.path}: {os.strerror(errno.ENOSPC)} ({problem})")
        return UserError(f"cannot write {self.path}: {problem}")

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _row(rollout: Rollout, phase: str, step: int | None, record: str) -> tuple[Any, ...]:
    values = (
        rollout.id, phase, step, rollout.environment, rollout.task.id, rollout.group, rollout.member, rollout.attempt,
        rollout.outcome.value, rollout.fault, rollout.reward, len(rollout.turns), rollout.action_tokens,
        rollout.seconds, record,
    )  # fmt: skip
    return tuple(map(_column, values))


def _column(value: Any) -> Any:
    """What SQLite can hold of a value: text without lone surrogates, whole numbers of 64 bits; the record has it all."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int):
        return max(-(2**63), min(value, 2**63 - 1))
    if isinstance(value, float) and not math.isfinite(value):
        return named(value)
    return value


def _record(rollout: Rollout) -> str:
    return encode(rollout.to_dict()).decode()


def reconciled(path: Path, rollouts: Sequence[Rollout], *, phase: str) -> tuple[RolloutStore, str]:
    """Open the store at `path` and make it hold exactly `rollouts`, which were read from the JSON lines beside it.

    A store that is missing or damaged is made anew. Also returns one line about what was repaired, empty where nothing
    was. Raises UserError where the store cannot be written.
    """
    latest = {_column(rollout.id): rollout for rollout in rollouts}
    existed = path.is_file()
    try:
        if not existed:
            _delete(path)  # what a store that is gone may have left beside it
        store, held = _opened(path, RolloutStore.records)
    except DataError as problem:
        if not _is_damage(problem):
            raise
        _delete(path)
        store, held = RolloutStore(path), {}
        note = f"was damaged: made anew from rollouts.jsonl, with {len(latest)} rollouts"
    else:
        wanted = {id: _record(rollout) for id, rollout in latest.items()}
        if held == wanted:
            return store, ""
        added, removed = len(wanted.keys() - held.keys()), len(held.keys() - wanted.keys())
        replaced = sum(held[id] != wanted[id] for id in held.keys() & wanted.keys())
        note = f"did not hold what rollouts.jsonl holds: {added} added, {replaced} replaced, {removed} removed"
        if not existed:
            note = f"was missing: made anew from rollouts.jsonl, with {len(latest)} rollouts"
    try:
        store.replace_all(list(latest.values()), phase=phase)
    except BaseException:
        store.close()
        raise
    return store, f"{path.name} {note}"


def taken_up(path: Path) -> tuple[RolloutStore, str]:
    """Open the store of a run that is gone on with, and whose rollouts are nowhere else.

    Also returns one line where it was missing and is begun anew, else an empty one. Raises DataError with the remedy where
    it is damaged; it is left as it is then.
    """
    note = ""
    try:
        if not path.is_file():
            _delete(path)  # what a store that is gone may have left beside it
            note = f"{path.name} was missing: a new one is begun, without the rollouts of earlier steps"
        store, _ = _opened(path, RolloutStore.check)
    except DataError as problem:
        if not _is_damage(problem):
            raise
        raise DataError(f"{problem}; move it away to go on without its rollouts (nothing else needs them)") from problem
    return store, note


def _opened(path: Path, read: Callable[[RolloutStore], T]) -> tuple[RolloutStore, T]:
    """The store at a path and what `read` finds in it. One that turns out to be damaged is closed."""
    store = RolloutStore(path)
    try:
        return store, read(store)
    except DataError:
        store.close()
        raise


def _is_damage(problem: DataError) -> bool:
    """Whether a store holds something else or is broken, and not merely in use or out of reach."""
    cause = problem.__cause__
    damage = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return not isinstance(cause, sqlite3.Error) or getattr(cause, "sqlite_errorcode", 1) & 0xFF in damage


def _delete(path: Path) -> None:
    try:
        for suffix in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as problem:
        raise UserError(f"cannot replace {path}: {problem.strerror}") from problem
