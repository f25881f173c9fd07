"""Fixtures for all tests: no test touches the user's own registry, cache or runs."""

import os
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)  # a busy machine is no failure
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of the test's own, and no colours or terminal width from outside."""
    monkeypatch.setenv("ENVHUB_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def write_environment(tmp_path: Path):
    """Write a Python file with an environment class and return its spec."""
    from envhub.specs import EnvironmentSpec

    def write(body: str, name: str = "Probe", *, file: str = "probe.py", **config: object) -> EnvironmentSpec:
        path = tmp_path / file
        path.write_text(
            "from envhub import Environment, EnvironmentFault, ModelFault, Observation, Message, Action\nimport asyncio, os, sys, time\n"
            + body
        )
        return EnvironmentSpec(name.lower(), f"{path}:{name}", dict(config))

    return write
