"""Mathematical questions, judged by `envhub.rewards.math_verify`."""

from envhub.environments.math_verify.environment import MathVerifyConfig, MathVerifyEnvironment, math_reward

__all__ = ["MathVerifyConfig", "MathVerifyEnvironment", "math_reward"]
