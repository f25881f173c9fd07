"""A number guessing game of several turns: the shortest complete environment."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from envhub import Environment, EnvironmentConfig, Limits
from envhub.environment import Reset, Step
from envhub.messages import Action, ActionLike

__all__ = ["GuessNumberConfig", "GuessNumberEnvironment"]

_NUMBER = re.compile(r"-?\d{1,18}(?!\d)")


class GuessNumberConfig(EnvironmentConfig):
    """The secret lies between 1 and `high`; `guesses` may be made."""

    high: int = Field(100, ge=1)
    guesses: int = Field(8, ge=1)


class GuessNumberEnvironment(Environment):
    """Guess a secret number; each wrong guess is answered by `higher` or `lower`.

    Reward: 1 for the right guess, less 0.5 of the share of guesses that were used before it; 0 without it.
    """

    name = "guess_number"
    Config = GuessNumberConfig
    limits = Limits(max_turns=32, max_turn_tokens=64)

    config: GuessNumberConfig

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Reset:
        self.secret = self.rng.randint(1, self.config.high)
        self.low, self.high, self.used = 1, self.config.high, 0
        rules = f"I think of a number from 1 to {self.config.high}. You have {self.config.guesses} guesses."
        return f"{rules} Answer with a number only.", {}

    def step(self, action: ActionLike) -> Step:
        self.used += 1
        numbers = _NUMBER.findall(Action.of(action).text)
        left = self.config.guesses - self.used
        if len(numbers) == 1 and int(numbers[0]) == self.secret:
            reward = 1.0 - 0.5 * (self.used - 1) / self.config.guesses
            return "right", reward, True, False, {"solved": True}
        if left == 0:
            return f"wrong; it was {self.secret}", 0.0, True, False, {"solved": False}
        if len(numbers) != 1:
            return f"Answer with one number only. {left} guesses left.", 0.0, False, False, {}
        guess = int(numbers[0])
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        answer = "higher" if guess < self.secret else "lower"
        return f"{answer}; {left} guesses left", 0.0, False, False, {}

    def oracle(self) -> ActionLike:
        return str((self.low + self.high) // 2)
