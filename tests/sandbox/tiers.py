"""The tiers that tests run on."""

import pytest

from envhub.errors import EnvironmentFault
from envhub.sandbox import Sandbox, make_sandbox


async def tier(name: str, concurrency: int) -> Sandbox:
    """A sandbox of a tier, started; skips the test where this machine does not offer it."""
    sandbox = make_sandbox(name, concurrency)
    try:
        await sandbox.start()
    except EnvironmentFault as problem:
        pytest.skip(f"this machine has no tier {name}: {problem}")
    return sandbox
