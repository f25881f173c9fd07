"""A supervised start of a training run, for a model that is too small to begin at all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from envhub.agents.rendering import ChatTemplateRenderer
from envhub.agents.rendering.base import Renderer
from envhub.errors import UserError
from envhub.specs import EnvironmentSpec
from envhub.trainer.sft.examples import Batches, Examples
from envhub.trainer.sft.run import supervise
from envhub.trainer.sft.sources import learn_oracle, play_oracle
from envhub.trainer.strategy import StepReport, Strategy

_MOST_TASKS = 1024


async def warm_start(
    strategy: Strategy,
    renderer: Renderer | None,
    spec: EnvironmentSpec,
    *,
    env_config: dict[str, Any],
    split: str,
    seed: int,
    steps: int,
    size: int,
    longest: int | None,
    parser: str,
    concurrency: int,
) -> AsyncIterator[StepReport]:
    """Take `steps` optimizer steps on episodes of the environment's oracle, `size` samples each, and yield their reports.

    Episodes without a reward above 0 are left out; samples are cut at `longest` tokens. Raises UserError for an
    environment without an oracle, and where none of its episodes is rewarded.
    """
    if not isinstance(renderer, ChatTemplateRenderer):
        raise UserError("a warm start writes the oracle's answers with a chat template, and this model has none")
    played = await play_oracle(
        spec,
        renderer,
        env_config=env_config,
        split=split,
        tasks=min(_MOST_TASKS, steps * size),
        seed=seed,
        parser=parser,
        concurrency=concurrency,
    )
    examples = Examples(longest or 1 << 20)
    learn_oracle(spec, played, None, examples)
    examples.refuse_none()
    batches = Batches(examples.items, size, seed)
    for step in range(steps):
        yield await asyncio.to_thread(supervise, strategy, batches.at(step))
