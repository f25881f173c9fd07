"""What an engine samples, as the rows that the trainer scores."""

import asyncio
from collections.abc import Sequence

import torch

from envhub.agents.engines import Engine, Generation, Request, SamplingParams
from envhub.trainer.batch import Rows

TEMPERATURE = 0.8


async def sampled(engine: Engine, count: int = 12) -> list[Generation]:
    """Generations of prompts of different lengths, decoded together."""
    sampling = SamplingParams(temperature=TEMPERATURE, ignore_eos=True)
    requests = [
        Request(f"r{i}", [5 + (7 * i + k) % 400 for k in range(3 + 5 * i)], 8 + 3 * i, sampling) for i in range(count)
    ]
    return list(await asyncio.gather(*map(engine.generate, requests)))


def rows_of(generations: Sequence[Generation]) -> Rows:
    """Rows whose advantages alternate between 1 and -1, every action token weighing the same."""
    ids = [[*(generation.prompt_token_ids or ()), *generation.token_ids] for generation in generations]
    lengths = torch.tensor([len(row) for row in ids])
    shape = len(ids), int(lengths.max())
    token_ids, mask, behaviour = torch.zeros(shape, dtype=torch.long), torch.zeros(shape), torch.zeros(shape)
    for row, generation in enumerate(generations):
        end = len(ids[row])
        begin = end - len(generation.token_ids)
        token_ids[row, :end] = torch.tensor(ids[row])
        mask[row, begin:end] = 1
        behaviour[row, begin:end] = torch.tensor(generation.logprobs)
    signs = torch.tensor([(-1.0) ** row for row in range(len(ids))])
    rows = Rows.bare(token_ids, mask, behaviour, lengths)
    rows.advantages, rows.weights = signs[:, None] * mask, mask / mask.sum()
    return rows


def fixed_rows() -> Rows:
    """Rows without an engine: behaviour logprobs of -6 everywhere."""
    rng = torch.Generator().manual_seed(0)
    made = [
        Generation(
            tuple(torch.randint(3, 1000, (4 + 3 * i,), generator=rng).tolist()), (-6.0,) * (4 + 3 * i),
            prompt_token_ids=torch.randint(3, 1000, (5 + i,), generator=rng).tolist(),
        )
        for i in range(6)
    ]  # fmt: skip
    return rows_of(made)


def distance(rows: Rows, scored: torch.Tensor) -> float:
    """The largest distance between the engine's logprobs and the trainer's at action tokens."""
    return float(((scored - rows.behaviour) * rows.mask).abs().max())
