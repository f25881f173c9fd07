"""Rollouts in SQLite: columns to select by, and the whole record to re-score and replay from."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from envhub.errors import DataError, UserError, did_you_mean
from envhub.records.closing import Closing
from envhub.records.jsonl import encode
from envhub.rollout import Rollout

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
            if read_only:
                if not path.is_file():
                    raise DataError(f"no rollouts at {path}: there is no such file")
                self._database = sqlite3.connect(
                    f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False
                )
                self._database.execute("SELECT count(*) FROM rollouts")
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._database = sqlite3.connect(path, check_same_thread=False)
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.executescript(_SCHEMA)
        except sqlite3.DatabaseError as problem:
            raise DataError(f"{path} is no rollout database that can be opened: {problem}") from problem
        except OSError as problem:
            raise UserError(f"cannot write {path}: {problem.strerror}") from problem

    def add(self, rollout: Rollout, *, phase: str = "eval", step: int | None = None) -> None:
        """Store a rollout; one with the same id is replaced. `phase` is `train`, `eval`, or a name of the caller's."""
        row = (
            rollout.id, phase, step, rollout.environment, rollout.task.id, rollout.group, rollout.member, rollout.attempt,
            rollout.outcome.value, rollout.fault, rollout.reward, len(rollout.turns), rollout.action_tokens,
            rollout.seconds, encode(rollout.to_dict()).decode(),
        )  # fmt: skip
        try:
            with self._database:
                self._database.execute(_INSERT, row)
        except sqlite3.Error as problem:
            raise UserError(f"cannot write {self.path}: {problem}") from problem

    def get(self, id: str) -> Rollout:
        """The rollout of an id, or of a prefix of it that is unique. Raises UserError."""
        rows = self._database.execute(
            "SELECT id, record FROM rollouts WHERE substr(id, 1, length(?1)) = ?1", (id,)
        ).fetchall()
        exact = [row for row in rows if row[0] == id]
        if len(exact or rows) == 1:
            return self._read(*(exact or rows)[0])
        if rows:
            raise UserError(f"{len(rows)} rollouts in {self.path} begin with {id!r}; give more of the id")
        known = [row[0] for row in self._database.execute("SELECT id FROM rollouts LIMIT 10000")]
        raise UserError(f"no rollout {id!r} in {self.path}, which holds {self.count()}{did_you_mean(id, known)}")

    def iterate(self, *, phase: str | None = None, step: int | None = None) -> Iterator[Rollout]:
        """The rollouts in the order in which they were added, all or those of a phase and step."""
        rows = self._database.execute(
            "SELECT id, record FROM rollouts WHERE (?1 IS NULL OR phase = ?1) AND (?2 IS NULL OR step = ?2) ORDER BY number",
            (phase, step),
        )
        for id, record in rows:
            yield self._read(id, record)

    def _read(self, id: str, record: str) -> Rollout:
        try:
            return Rollout.from_dict(json.loads(record))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise DataError(f"{self.path}, rollout {id!r}: no rollout record: {problem}") from None

    def count(self, phase: str | None = None) -> int:
        """How many rollouts there are."""
        query = "SELECT count(*) FROM rollouts WHERE ?1 IS NULL OR phase = ?1"
        return int(self._database.execute(query, (phase,)).fetchone()[0])

    def drop_after(self, phase: str, step: int) -> int:
        """Forget the rollouts of a phase that belong to later steps (which a resumed run does again)."""
        with self._database:
            return self._database.execute("DELETE FROM rollouts WHERE phase = ? AND step > ?", (phase, step)).rowcount

    def close(self) -> None:
        """Close the file."""
        self._database.close()
