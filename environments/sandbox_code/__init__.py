"""Coding tasks with hidden tests, run in a sandbox."""

from envhub.environments.sandbox_code.environment import SandboxCodeConfig, SandboxCodeEnvironment, submission

__all__ = ["SandboxCodeConfig", "SandboxCodeEnvironment", "submission"]
