"""The transformers engine on CUDA, held against the trainer's own logprobs there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from envhub.agents.engines import Engine, WeightUpdate, make_engine
from envhub.trainer.algorithms import GRPO
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy

from .samples import TEMPERATURE, distance, rows_of, sampled

pytestmark = pytest.mark.gpu


@asynccontextmanager
async def started(path: Path, device: str, **options: object) -> AsyncIterator[Engine]:
    engine = make_engine("transformers", str(path), options={"device": device, **options})
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 5e-2)])
async def test_logprobs_are_the_trainers_before_and_after_an_update(
    cuda: str, tiny_path: Path, dtype: str, tolerance: float
) -> None:
    strategy = TorchStrategy(tiny_path, Optimization(learning_rate=1e-3, precision=dtype), device=cuda)
    async with started(tiny_path, cuda, dtype=dtype) as engine:
        rows = rows_of(await sampled(engine))
        assert distance(rows, strategy.score(rows, TEMPERATURE)) < tolerance
        assert not strategy.step(rows, GRPO, TEMPERATURE, None, None).skipped
        moved = strategy.score(rows, TEMPERATURE)
        await engine.update_weights(WeightUpdate(1, strategy.named_tensors()))
        generations = await sampled(engine)
        assert {version for generation in generations for version in generation.versions} == {1}
        rows = rows_of(generations)
        assert distance(rows, strategy.score(rows, TEMPERATURE)) < tolerance
    assert moved.isfinite().all()


async def test_the_trainer_on_the_cpu_agrees_too(cuda: str, tiny_path: Path) -> None:
    strategy = TorchStrategy(tiny_path, Optimization(learning_rate=1e-3, precision="float32"), device="cpu")
    async with started(tiny_path, cuda, dtype="float32") as engine:
        rows = rows_of(await sampled(engine))
        strategy.step(rows, GRPO, TEMPERATURE, None, None)
        await engine.update_weights(WeightUpdate(1, strategy.named_tensors()))
        rows = rows_of(await sampled(engine))
        assert distance(rows, strategy.score(rows, TEMPERATURE)) < 1e-3


async def test_one_seed_samples_the_same_tokens(cuda: str, tiny_path: Path) -> None:
    seen = []
    for seed in (3, 3, 4):
        async with started(tiny_path, cuda, dtype="float32", seed=seed, max_batch=1) as engine:
            seen.append([generation.token_ids for generation in await sampled(engine, 3)])
    assert seen[0] == seen[1] != seen[2]


async def test_closing_gives_the_memory_back(cuda: str, tiny_path: Path) -> None:
    async with started(tiny_path, cuda) as engine:
        await sampled(engine)  # libraries keep the workspaces of the first use
    before = torch.cuda.memory_allocated(cuda)
    async with started(tiny_path, cuda) as engine:
        await sampled(engine)
        assert torch.cuda.memory_allocated(cuda) > before + 2**20
    assert torch.cuda.memory_allocated(cuda) < before + 2**20


@pytest.mark.parametrize("device", ["auto", "cuda:0"])
async def test_the_device_may_be_left_open_or_numbered(cuda: str, tiny_path: Path, device: str) -> None:
    strategy = TorchStrategy(tiny_path, Optimization(precision="float32"), device=device)
    assert strategy.device.type == torch.device(cuda).type
    async with started(tiny_path, device) as engine:
        rows = rows_of(await sampled(engine))
    assert distance(rows, strategy.score(rows, TEMPERATURE)) < 5e-2
