"""What the executors leave of vLLM's speed: rollouts through the pool against the same requests given to vLLM directly.

Both run on one engine instance with the same prompts, lengths and sampling; the environment answers at once and every
turn has the same number of tokens. Tokens a second of wall time, in ABBA order. What a rollout costs besides its tokens
is about the same for every model, so the smaller the model and the shorter the turn, the more it shows.

    python -m benchmarks.engine_throughput [--model smollm2] [--tokens 32] [--prompts 64] [--rounds 3] [--json]
"""

import argparse
import asyncio
import statistics
import sys
import time

from benchmarks.measure import Row, abba_async, at_least, ratio, report
from envhub import Limits
from envhub.agents.engines import SamplingParams, make_engine
from envhub.agents.executors import MultiTurnExecutor, RolloutPool
from envhub.agents.models import resolve_model
from envhub.agents.rendering import load_renderer
from envhub.environment import Environment
from envhub.specs import EnvironmentSpec

BAR = 0.95
QUESTION = "I am thinking of a number between 1 and 100. Guess it, and say why you guess so."
SAMPLING = SamplingParams(ignore_eos=True)


class OneQuestion(Environment):
    """Asks once and takes any answer."""

    async def reset(self, *, seed=None, options=None):
        return QUESTION, {}

    async def step(self, action):
        return "Thank you.", 1.0, True, False, {}


SPEC = EnvironmentSpec("one_question", "benchmarks.engine_throughput:OneQuestion")


async def measure(model: str, prompts: int, tokens: int, rounds: int) -> int:
    """Run all of it on one engine; 1 when the bar is missed."""
    from vllm import SamplingParams as VllmSampling
    from vllm.sampling_params import RequestOutputKind

    folder = resolve_model(model).path
    engine = make_engine("vllm", str(folder), options={"max_context": 1024, "max_batch": prompts})
    await engine.start()
    try:
        renderer = load_renderer(folder)
        pool = RolloutPool(
            MultiTurnExecutor(engine, renderer), SPEC, limits=Limits(max_turn_tokens=tokens), sampling=SAMPLING,
            concurrency=prompts,
        )  # fmt: skip
        task = pool.tasks.get("train", 0)
        group = await pool.run_group(task, 1)
        ids = group.rollouts[0].trajectory.path_ids(0)

        async def through_pool() -> float:
            began = time.perf_counter()
            group = await pool.run_group(task, prompts)
            spent = time.perf_counter() - began
            assert sum(turn.sampled_tokens for rollout in group.rollouts for turn in rollout.turns) == prompts * tokens
            return prompts * tokens / spent

        number = 0

        async def one() -> int:
            nonlocal number
            number += 1
            sampling = VllmSampling(
                temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            count = 0
            # The very instance that the engine holds, so that both sides share its caches and threads.
            async for part in engine._llm.generate({"prompt_token_ids": list(ids)}, sampling, f"direct-{number}"):
                count += len(part.outputs[0].token_ids)
            return count

        async def direct() -> float:
            began = time.perf_counter()
            counts = await asyncio.gather(*[one() for _ in range(prompts)])
            spent = time.perf_counter() - began
            assert sum(counts) == prompts * tokens
            return prompts * tokens / spent

        await through_pool()
        ours, theirs = await abba_async(through_pool, direct, rounds)
    finally:
        await engine.close()
    rows = [
        Row(f"rollouts of {model}, {prompts} at once, {tokens} tokens each", statistics.median(ours), "tokens/s"),
        Row("vLLM driven directly", statistics.median(theirs), "tokens/s"),
        at_least(f"rollouts against direct (median of {len(ours)} pairs)", ratio(ours, theirs), "ratio", BAR),
        Row("direct against itself (A/A: the two of each round)", ratio(theirs[::2], theirs[1::2]), "ratio"),
    ]
    return report("engine throughput", rows)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="of four measurements each: two pairs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    return asyncio.run(measure(given.model, given.prompts, given.tokens, given.rounds))


if __name__ == "__main__":
    sys.exit(main())
