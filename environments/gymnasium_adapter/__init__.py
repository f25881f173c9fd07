"""Any Gymnasium environment as an envhub environment."""

from envhub.environments.gymnasium_adapter.environment import GymnasiumEnvironment

__all__ = ["GymnasiumEnvironment"]
