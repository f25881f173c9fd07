"""Several turns an episode."""

from envhub.agents.executors.base import Episode, Executor
from envhub.outcome import Outcome


class MultiTurnExecutor(Executor):
    """Alternates model and environment until the task ends or a limit is reached."""

    async def play(self, episode: Episode) -> Outcome:
        for _ in range(episode.limits.max_turns):
            outcome = await self.take_turn(episode)
            if outcome is not None:
                return outcome
        return Outcome.TRUNCATED_TURNS
