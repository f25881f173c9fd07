"""One turn an episode."""

from envhub.agents.executors.base import Episode, Executor
from envhub.outcome import Outcome


class SingleTurnExecutor(Executor):
    """Lets the model act once. An environment that wants more turns is truncated."""

    async def play(self, episode: Episode) -> Outcome:
        return await self.take_turn(episode) or Outcome.TRUNCATED_TURNS
