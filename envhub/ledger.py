"""The ledger: where every rollout that was ever issued has gone."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envhub.errors import EnvhubError


class LedgerError(EnvhubError):
    """The ledger does not balance: rollouts were lost or counted twice. Always a bug."""


@dataclass(slots=True)
class Ledger:
    """Counts with the invariant `issued = used + Σ dropped + in_flight + buffered`, checked at every change.

    A rollout is issued once, is then in flight, and is afterwards buffered or dropped; a buffered one is used (trained
    on, or counted in an evaluation) or dropped. `retried` counts repeated attempts; they are no new rollouts.
    """

    issued: int = 0
    in_flight: int = 0
    buffered: int = 0
    used: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)

    def issue(self, count: int = 1) -> None:
        """`count` rollouts begin."""
        self.issued += count
        self.in_flight += count
        self.check()

    def finish(self, count: int = 1) -> None:
        """`count` rollouts in flight ended and wait to be used."""
        self._move("in_flight", count)
        self.buffered += count
        self.check()

    def use(self, count: int = 1) -> None:
        """`count` buffered rollouts are trained on or counted."""
        self._move("buffered", count)
        self.used += count
        self.check()

    def drop(self, reason: str, count: int = 1, *, buffered: bool = False) -> None:
        """`count` rollouts in flight (or buffered ones) are dropped for `reason`."""
        self._move("buffered" if buffered else "in_flight", count)
        if count:
            self.dropped[reason] += count
        self.check()

    def retry(self, reason: str) -> None:
        """A rollout in flight is tried again."""
        self.retried[reason] += 1

    def check(self) -> None:
        """Raises LedgerError when the invariant does not hold."""
        total = self.used + self.dropped.total() + self.in_flight + self.buffered
        if self.issued != total or min(self.in_flight, self.buffered, self.used) < 0:
            raise LedgerError(f"the ledger does not balance: {self}")

    def _move(self, place: str, count: int) -> None:
        left = getattr(self, place) - count
        if count < 0 or left < 0:
            raise LedgerError(f"cannot take {count} rollouts out of {place}, which holds {left + count}")
        setattr(self, place, left)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "issued": self.issued,
            "used": self.used,
            "in_flight": self.in_flight,
            "buffered": self.buffered,
            "dropped": dict(self.dropped),
            "retried": dict(self.retried),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Ledger":
        """Inverse of `to_dict`. Raises LedgerError where it does not balance."""
        made = cls(**{**value, "dropped": Counter(value["dropped"]), "retried": Counter(value["retried"])})
        made.check()
        return made

    def __str__(self) -> str:
        dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "none"
        return (
            f"issued {self.issued} = used {self.used} + dropped {self.dropped.total()} ({dropped}) "
            f"+ in flight {self.in_flight} + buffered {self.buffered}"
        )
