"""Tests of the CUDA paths. Without a GPU they are left out, unless `-m gpu` asks for them: then they fail and say why."""

from pathlib import Path

import pytest
import torch

from envhub.agents.models import resolve_model


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "gpu" in config.option.markexpr or torch.cuda.is_available():
        return
    left_out = [item for item in items if item.get_closest_marker("gpu") is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def cuda() -> str:
    """The name of the CUDA device."""
    if not torch.cuda.is_available():
        pytest.fail("this test needs a CUDA device and torch sees none; leave it out with -m 'not gpu'")
    return "cuda"


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    return resolve_model("tiny").path
