"""vLLM on CUDA, its graphs captured: logprobs and weight updates, held against the trainer's."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envhub.agents.engines import Engine, WeightUpdate, make_engine
from envhub.trainer.algorithms import GRPO
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy

from .samples import TEMPERATURE, distance, rows_of, sampled

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

OPTIONS = {"dtype": "bfloat16", "gpu_memory": 0.3, "max_context": 1024, "max_batch": 32}
TOLERANCE = 5e-2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(cuda: str, tiny_path: Path) -> AsyncIterator[Engine]:
    made = make_engine("vllm", str(tiny_path), options=OPTIONS)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


@pytest.fixture(scope="module")
def strategy(cuda: str, tiny_path: Path) -> TorchStrategy:
    return TorchStrategy(tiny_path, Optimization(learning_rate=1e-3, precision="bfloat16"), device=cuda)


async def test_logprobs_are_the_trainers(engine: Engine, strategy: TorchStrategy) -> None:
    rows = rows_of(await sampled(engine))
    assert distance(rows, strategy.score(rows, TEMPERATURE)) < TOLERANCE


@pytest.mark.parametrize("way", ["memory", "folder"])
async def test_an_update_reaches_the_next_tokens(
    engine: Engine, strategy: TorchStrategy, tmp_path: Path, way: str
) -> None:
    before = rows_of(await sampled(engine))
    stale = strategy.score(before, TEMPERATURE)
    for _ in range(4):
        assert not strategy.step(before, GRPO, TEMPERATURE, None, None).skipped
    assert float(((strategy.score(before, TEMPERATURE) - stale) * before.mask).abs().max()) > 2 * TOLERANCE
    version = engine.weight_version + 1
    if way == "memory":
        update = WeightUpdate(version, tensors=strategy.named_tensors())
    else:
        strategy.save_model(tmp_path)
        update = WeightUpdate(version, path=tmp_path)
    await engine.update_weights(update)
    generations = await sampled(engine)
    assert {seen for generation in generations for seen in generation.versions} == {version}
    after = rows_of(generations)
    assert distance(after, strategy.score(after, TEMPERATURE)) < TOLERANCE
