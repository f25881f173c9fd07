"""Executors run episodes; the rollout pool runs groups of them."""

from envhub.agents.executors.base import Episode, Executor
from envhub.agents.executors.multi_turn import MultiTurnExecutor
from envhub.agents.executors.pool import Group, InFlight, RolloutPool
from envhub.agents.executors.single_turn import SingleTurnExecutor
from envhub.agents.executors.watchdog import Blocked, Watchdog

__all__ = [
    "Blocked",
    "Episode",
    "Executor",
    "Group",
    "InFlight",
    "MultiTurnExecutor",
    "RolloutPool",
    "SingleTurnExecutor",
    "Watchdog",
]
