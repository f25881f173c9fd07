"""The provider for inspect_ai: its own checks, unmodified, and what they do not look at."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("inspect_ai", reason="needs pip install 'envhub[inspect]'")

from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - as its own description says

from envhub.errors import UserError
from envhub.sandbox import SandboxLimits, best_tier, inspect_provider
from envhub.sandbox.inspect_provider import EnvhubSandboxEnvironment

ONE_USER = "test_exec_as_user"  # adds a user as root: a session has one user, and nobody in it is root


@pytest_asyncio.fixture
async def environment() -> AsyncIterator[EnvhubSandboxEnvironment]:
    made = await EnvhubSandboxEnvironment.sample_init("task", None, {})
    yield made["default"].as_type(EnvhubSandboxEnvironment)
    await EnvhubSandboxEnvironment.sample_cleanup("task", None, made, False)


@pytest.fixture
def sandbox_env(environment: EnvhubSandboxEnvironment, request: pytest.FixtureRequest) -> EnvhubSandboxEnvironment:
    """What the checks of inspect_ai, which are tests of this module by their import, look at."""
    if best_tier() == "process":
        pytest.skip("they look at /etc and /tmp, which the tier process closes")
    if request.node.originalname == ONE_USER:
        request.applymarker(pytest.mark.xfail(strict=True))
    return environment


async def test_a_program_that_fails_and_one_that_is_not_there_are_results(
    environment: EnvhubSandboxEnvironment,
) -> None:
    failed = await environment.exec(["bash", "-c", "cat; exit 3"], input="in")
    assert (failed.success, failed.returncode, failed.stdout) == (False, 3, "in")
    missing = await environment.exec(["no-such-program"])
    assert (missing.success, missing.returncode) == (False, 127)


async def test_limits_come_from_a_model_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text("processes = 7")
    for config in (
        SandboxLimits(processes=7),
        str(tmp_path / "limits.toml"),
        inspect_provider._checked({"processes": 7}),
    ):
        made = await EnvhubSandboxEnvironment.sample_init("task", config, {})
        assert made["default"].as_type(EnvhubSandboxEnvironment).session.limits.processes == 7
        await EnvhubSandboxEnvironment.sample_cleanup("task", config, made, True)


@pytest.mark.parametrize("text", ["processes = ", "procceses = 1", "processes = 0"])
def test_a_file_that_is_none_of_limits_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text(text)
    with pytest.raises(UserError, match="limits"):
        inspect_provider._limits(str(tmp_path / "limits.toml"))


def test_inspect_ai_finds_it_by_its_name() -> None:
    from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

    found: Any = registry_find_sandboxenv("envhub")
    assert found is EnvhubSandboxEnvironment
