"""What a check says: one result a check, and the report of all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "warn", "skip"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdict of one check: `detail` says what was found, `remedy` how to repair it; `seconds` it took."""

    name: str
    status: Status
    detail: str = ""
    remedy: str = ""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "name": self.name,
            "status": self.status,
            "detail": self.detail,
            "remedy": self.remedy,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The results of all checks of one environment, in the order in which they ran."""

    environment: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed; warnings and skipped checks do not count."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The results that failed."""
        return tuple(result for result in self.results if result.status == "fail")

    def __getitem__(self, name: str) -> CheckResult:
        """The result of a check by name. Raises KeyError for a check that was not made."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "environment": self.environment,
            "ok": self.ok,
            "results": [result.to_dict() for result in self.results],
        }


OnResult = Callable[[CheckResult], None]


class Verdict(Exception):
    """Ends a check with something else than a plain pass."""

    def __init__(self, status: Status, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.status: Status = status
        self.detail = detail
        self.remedy = remedy


def fail(detail: str, remedy: str = "") -> Verdict:
    """A verdict: the environment is wrong."""
    return Verdict("fail", detail, remedy)


def warn(detail: str, remedy: str = "") -> Verdict:
    """A verdict: it works, yet should be better."""
    return Verdict("warn", detail, remedy)


def skip(detail: str, remedy: str = "") -> Verdict:
    """A verdict: the check does not apply, or cannot be made."""
    return Verdict("skip", detail, remedy)
