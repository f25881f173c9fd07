"""Sandboxes: run a model's code under limits, and grade it without trusting it."""

import functools
import os
import threading

from envhub.errors import EnvironmentFault, UserError, did_you_mean
from envhub.sandbox.base import (
    CallResult,
    ExecResult,
    Probe,
    RunOutcome,
    Sandbox,
    SandboxLimits,
    Session,
    SessionError,
    Snapshot,
    TestResult,
)
from envhub.sandbox.comparing import Comparison, same_output, same_value
from envhub.sandbox.grading import (
    Failure,
    Report,
    grade_by_tests,
    grade_by_unit_tests,
    grade_function,
    grade_program,
)
from envhub.sandbox.joining import joined
from envhub.sandbox.languages import LANGUAGES, run_program
from envhub.sandbox.process import ProcessSandbox, is_plain
from envhub.sandbox.remote import RemoteSandbox
from envhub.sandbox.slot import SlotSandbox, UserSlotSandbox

TIERS: dict[str, type[ProcessSandbox]] = {tier.tier: tier for tier in (SlotSandbox, UserSlotSandbox, ProcessSandbox)}
"""The kinds of sandbox, the one that promises most first."""

__all__ = [
    "AUTO",
    "LANGUAGES",
    "TIERS",
    "CallResult",
    "Comparison",
    "ExecResult",
    "Failure",
    "Probe",
    "ProcessSandbox",
    "RemoteSandbox",
    "Report",
    "RunOutcome",
    "Sandbox",
    "SandboxLimits",
    "Session",
    "SessionError",
    "SlotSandbox",
    "Snapshot",
    "TestResult",
    "UserSlotSandbox",
    "best_tier",
    "default_sandbox",
    "grade_by_tests",
    "grade_by_unit_tests",
    "grade_function",
    "grade_program",
    "is_plain",
    "joined",
    "make_sandbox",
    "run_program",
    "same_output",
    "same_value",
]

_lock = threading.Lock()
_shared: Sandbox | None = None


AUTO = "auto"
"""In the place of a tier: the one that promises most of those that this machine offers."""


def make_sandbox(tier: str = AUTO, concurrency: int | None = None) -> Sandbox:
    """A sandbox of the named tier, for so many submissions at once; or one on a server, by its address.

    Raises `UserError` for a tier that does not exist, `EnvironmentFault` where the machine offers none.
    """
    if _is_address(tier):
        return RemoteSandbox(tier)
    return TIERS[best_tier() if tier == AUTO else _known(tier)](concurrency)


@functools.cache
def best_tier() -> str:
    """The tier that promises most of those that this machine offers. Raises `EnvironmentFault` where there is none."""
    missing = {}
    for name, kind in TIERS.items():
        if not (said := kind.missing()):
            return name
        missing[name] = said
    raise EnvironmentFault("; ".join(f"the {name} sandbox {said}" for name, said in missing.items()))


def default_sandbox() -> Sandbox:
    """The sandbox that everything in this process shares, made on first use.

    ENVHUB_SANDBOX names its tier (the default is `auto`), or the address of a sandbox server; one that promises less than the tier that
    ENVHUB_SANDBOX_MINIMUM names is refused. Raises `UserError` for that and for a tier that does not exist.
    """
    global _shared
    with _lock:
        if _shared is None:
            tier, minimum = os.environ.get("ENVHUB_SANDBOX") or AUTO, os.environ.get("ENVHUB_SANDBOX_MINIMUM") or ""
            if _is_address(tier):
                _shared = RemoteSandbox(tier, minimum=minimum and _known(minimum), tiers=list(TIERS))
            else:
                made = make_sandbox(tier)
                _refuse_less(made.tier, minimum)
                _shared = made
        return _shared


def _is_address(tier: str) -> bool:
    return tier.startswith(("http://", "https://"))


def _refuse_less(tier: str, minimum: str) -> None:
    order = list(TIERS)
    if minimum and order.index(tier) > order.index(_known(minimum)):
        missing = TIERS[minimum].missing()
        why = f"the {minimum} sandbox {missing}" if missing else f"ENVHUB_SANDBOX asks for {tier}"
        raise UserError(f"the sandbox tier {tier} promises less than ENVHUB_SANDBOX_MINIMUM={minimum}: {why}")


def _known(tier: str) -> str:
    if tier not in TIERS:
        known = ", ".join(sorted(TIERS))
        raise UserError(f"no sandbox tier named {tier!r}{did_you_mean(tier, TIERS)} (tiers: {known}, or auto)")
    return tier
