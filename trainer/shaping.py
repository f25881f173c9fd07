"""What is done to rewards before advantages are estimated. Recorded rewards stay as the environment gave them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from envhub.errors import UserError
from envhub.outcome import Outcome
from envhub.rollout import Rollout

_CUT = (Outcome.TRUNCATED_TOKENS, Outcome.TRUNCATED_CONTEXT)


def overlong(lengths: Tensor, longest: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's soft penalty (arXiv 2503.14476), to be added: 0 up to longest - buffer tokens, -factor from longest on.

    `lengths` [rollouts] in action tokens; between the two it falls linearly.
    """
    over = (lengths - (longest - buffer)).clamp(min=0) / buffer
    return -factor * over.clamp(max=1)


@dataclass(frozen=True, slots=True)
class Shaping:
    """Reward shaping, in this order: scale, clip, the penalty of truncated answers, the penalty of long ones.

    `clip` bounds rewards to ±clip. `truncated` is multiplied with the positive reward of a rollout whose last turn a
    limit of tokens cut off (ProRL's stop-properly penalty). The soft penalty begins `overlong_buffer` tokens before
    `longest`, the most that an episode may sample; a buffer of 0 means none.
    """

    scale: float = 1.0
    clip: float | None = None
    truncated: float = 1.0
    overlong_buffer: int = 0
    overlong_factor: float = 1.0
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.overlong_buffer and (self.longest is None or self.overlong_buffer > self.longest):
            raise UserError(
                f"overlong_buffer is at most the {self.longest} tokens that an episode may sample, not {self.overlong_buffer}"
            )

    def by_turn(self, rollouts: Sequence[Rollout]) -> Tensor:
        """The same rewards by the turn that earned them, [rollouts, turns]: their sum over turns is `self(rollouts)`.

        What is no turn's own (penalties, clipping, rewards of the whole group) stands at the last turn.
        """
        total = self(rollouts)
        out = torch.zeros(len(rollouts), max(1, *(len(rollout.turns) for rollout in rollouts)))
        for row, rollout in enumerate(rollouts):
            for number, turn in enumerate(rollout.turns):
                out[row, number] = turn.reward * self.scale
            last = max(0, len(rollout.turns) - 1)
            out[row, last] += total[row] - out[row].sum()
        return out

    def __call__(self, rollouts: Sequence[Rollout]) -> Tensor:
        """The rewards that advantages are made of, [rollouts], float32."""
        rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32) * self.scale
        if self.clip is not None:
            rewards = rewards.clamp(-self.clip, self.clip)
        if self.truncated != 1.0:
            cut = torch.tensor([is_cut(rollout) for rollout in rollouts])
            rewards = torch.where(cut & (rewards > 0), rewards * self.truncated, rewards)
        if self.overlong_buffer and self.longest is not None:
            lengths = torch.tensor([float(rollout.trajectory.action_tokens) for rollout in rollouts])
            rewards = rewards + overlong(lengths, self.longest, self.overlong_buffer, self.overlong_factor)
        return rewards


def is_cut(rollout: Rollout) -> bool:
    """Whether a limit of tokens ended it: by the outcome, or by how the engine says that its last turn ended."""
    return rollout.outcome in _CUT or (bool(rollout.turns) and rollout.turns[-1].action.finish_reason == "length")
