"""Coding tasks with hidden tests, run in a sandbox."""

from envhub.environments.sandbox_code.answers import submission
from envhub.environments.sandbox_code.environment import SandboxCodeConfig, SandboxCodeEnvironment

__all__ = ["SandboxCodeConfig", "SandboxCodeEnvironment", "submission"]
