"""Sandboxes: run a model's code under limits, and grade it without trusting it."""

import os
import threading

from envhub.errors import UserError, did_you_mean
from envhub.sandbox.base import CallResult, ExecResult, Probe, RunOutcome, Sandbox, SandboxLimits
from envhub.sandbox.grading import (
    Failure,
    Report,
    grade_by_tests,
    grade_function,
    grade_program,
    same_output,
    same_value,
)
from envhub.sandbox.joining import joined
from envhub.sandbox.process import ProcessSandbox, is_plain
from envhub.sandbox.slot import SlotSandbox

TIERS: dict[str, type[ProcessSandbox]] = {"slot": SlotSandbox, "process": ProcessSandbox}
"""The kinds of sandbox, the one that promises most first."""

__all__ = [
    "TIERS",
    "CallResult",
    "ExecResult",
    "Failure",
    "Probe",
    "ProcessSandbox",
    "Report",
    "RunOutcome",
    "Sandbox",
    "SandboxLimits",
    "SlotSandbox",
    "default_sandbox",
    "grade_by_tests",
    "grade_function",
    "grade_program",
    "is_plain",
    "joined",
    "make_sandbox",
    "same_output",
    "same_value",
]

_lock = threading.Lock()
_shared: Sandbox | None = None


def make_sandbox(tier: str = "process", concurrency: int | None = None) -> Sandbox:
    """A sandbox of the named tier, for so many submissions at once. Raises `UserError` for a tier that does not exist."""
    if tier not in TIERS:
        known = ", ".join(sorted(TIERS))
        raise UserError(f"no sandbox tier named {tier!r}{did_you_mean(tier, TIERS)} (tiers: {known})")
    return TIERS[tier](concurrency)


def default_sandbox() -> Sandbox:
    """The sandbox that everything in this process shares, of the tier that ENVHUB_SANDBOX names; made on first use.

    Raises `UserError` for a tier that does not exist.
    """
    global _shared
    with _lock:
        if _shared is None:
            _shared = make_sandbox(os.environ.get("ENVHUB_SANDBOX") or "process")
        return _shared
