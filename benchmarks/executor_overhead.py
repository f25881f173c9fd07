"""What the executors cost: CPU time a turn at 256 concurrent episodes, and how it grows with an episode's length.

The scripted engine answers at once, so all that is measured is ours: rendering, the token record, limits, deadlines, the
driver, the pool and the ledger. CPU time is the process's own (user and system).
"""

import asyncio
import statistics
import sys
import time

from benchmarks.measure import Row, abba, at_most, ratio, report
from envhub import Limits
from envhub.agents.engines.scripted import ScriptedEngine
from envhub.agents.executors import MultiTurnExecutor, RolloutPool
from envhub.agents.rendering import ByteRenderer
from envhub.environment import Environment
from envhub.specs import EnvironmentSpec

EPISODES = 256
TURNS = 20
ANSWER = "a short answer of some forty characters."


class ChatterEnvironment(Environment):
    """Answers every turn with a sentence; never ends by itself."""

    async def reset(self, *, seed=None, options=None):
        return "Say something, and go on saying something.", {}

    async def step(self, action):
        return f"You said {len(action.text)} characters. Go on.", 0.0, False, False, {}


SPEC = EnvironmentSpec("chatter", "benchmarks.executor_overhead:ChatterEnvironment")


def cpu_per_turn(episodes: int, turns: int) -> float:
    """Microseconds of CPU per turn of `episodes` concurrent episodes of `turns` turns."""

    async def play() -> float:
        executor = MultiTurnExecutor(ScriptedEngine(lambda messages, request: ANSWER), ByteRenderer())
        limits = Limits(max_turns=turns, max_episode_tokens=None)
        pool = RolloutPool(executor, SPEC, limits=limits, concurrency=episodes)
        began = time.process_time()
        group = await pool.run_group(pool.tasks.get("train", 0), episodes)
        spent = time.process_time() - began
        assert all(len(rollout.turns) == turns for rollout in group.rollouts)
        return spent / (episodes * turns) * 1e6

    return asyncio.run(play())


def main() -> int:
    """Measure and print."""
    cpu_per_turn(16, TURNS)
    per_turn, again = abba(lambda: cpu_per_turn(EPISODES, TURNS), lambda: cpu_per_turn(EPISODES, TURNS), 2)
    long, short = abba(lambda: 200 * cpu_per_turn(8, 200), lambda: 100 * cpu_per_turn(8, 100), 4)
    _, same = abba(lambda: 100 * cpu_per_turn(8, 100), lambda: 100 * cpu_per_turn(8, 100), 2)
    rows = [
        at_most(f"CPU per turn, {EPISODES} concurrent episodes", statistics.median(per_turn), "µs", 400),
        Row("the same against itself (A/A)", ratio(per_turn, again), "ratio"),
        at_most("a 200-turn episode against a 100-turn one", ratio(long, short), "ratio", 2.2),
        Row("a 100-turn episode against itself (A/A)", statistics.median(same) / statistics.median(short), "ratio"),
    ]
    return report("executor overhead", rows)


if __name__ == "__main__":
    sys.exit(main())
