"""What a sandbox server and its clients say to each other, as JSON: results, values and files."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from envhub.sandbox.base import CallResult, ExecResult, RunOutcome, TestResult
from envhub.sandbox.wire import Handle, Opaque, decode, encode

KEY = "ENVHUB_SANDBOX_KEY"
"""Names the environment variable with the key that server and clients share."""

MOST_BYTES = 128 << 20
"""The largest body of a request or an answer."""


def packed(data: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(data).decode("ascii")


def unpacked(text: object) -> bytes:
    """The bytes of a text that `packed` made. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError("bytes come as base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as problem:
        raise ValueError(f"no base64: {problem}") from None


def of_call(result: CallResult) -> dict[str, Any]:
    """A call's result."""
    value = encode(result.value, MOST_BYTES, other=_as_text)
    return {
        "outcome": result.outcome.value, "value": value, "error": result.error, "stdout": result.stdout,
        "stderr": result.stderr, "raised": encode(tuple(result.raised), MOST_BYTES, other=_as_text),
    }  # fmt: skip


def _as_text(value: object) -> object:
    """For what is no plain value, which equals nothing on the other side either."""
    return {"o": value.text if isinstance(value, Opaque) else f"<{type(value).__name__} object>"}


def call_of(data: Mapping[str, Any]) -> CallResult:
    """The result that `of_call` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    return CallResult(
        RunOutcome(data["outcome"]), decode(data["value"], handle=Handle), str(data["error"]), str(data["stdout"]),
        str(data["stderr"]), tuple(decode(data["raised"])),  # type: ignore[arg-type]
    )  # fmt: skip


def of_exec(result: ExecResult) -> dict[str, Any]:
    """A program's result."""
    return {
        "outcome": result.outcome.value, "exit_code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr,
        "seconds": result.seconds,
    }  # fmt: skip


def exec_of(data: Mapping[str, Any]) -> ExecResult:
    """The result that `of_exec` wrote. Raises as `call_of` does."""
    return ExecResult(
        RunOutcome(data["outcome"]), int(data["exit_code"]), str(data["stdout"]), str(data["stderr"]),
        float(data["seconds"]),
    )  # fmt: skip


def of_test(result: TestResult) -> dict[str, Any]:
    """A unit test's result."""
    return {"name": result.name, "passed": result.passed, "outcome": result.outcome.value, "message": result.message}


def test_of(data: Mapping[str, Any]) -> TestResult:
    """The result that `of_test` wrote. Raises as `call_of` does."""
    return TestResult(str(data["name"]), data["passed"] is True, RunOutcome(data["outcome"]), str(data["message"]))
