"""Mathematical questions, verified by math-verify in a process that can be killed."""

from envhub.environments.math_verify.environment import MathVerifyConfig, MathVerifyEnvironment, math_reward
from envhub.environments.math_verify.verify import is_right, same_answer

__all__ = ["MathVerifyConfig", "MathVerifyEnvironment", "is_right", "math_reward", "same_answer"]
