"""What is done to rewards before advantages are made of them."""

from dataclasses import replace

import pytest
import torch

from envhub import Action
from envhub.errors import UserError
from envhub.outcome import Outcome
from envhub.rollout import Turn
from envhub.trainer.shaping import Shaping, overlong


def test_the_penalty_of_length_is_soft_up_to_the_longest():
    lengths = torch.tensor([1.0, 60.0, 70.0, 80.0, 100.0, 200.0])
    assert torch.allclose(overlong(lengths, 100, 40, 2.0), torch.tensor([0.0, 0.0, -0.5, -1.0, -2.0, -2.0]))


def test_rewards_are_as_they_were_by_default(make_rollout):
    rollouts = [make_rollout([([3], [4] * n)], float(n) - 2) for n in (1, 2, 3)]
    assert Shaping()(rollouts).tolist() == [-1.0, 0.0, 1.0]


def test_scale_clip_and_penalties_act_in_this_order(make_rollout):
    rollouts = [make_rollout([([3], [4] * n)], reward) for n, reward in ((2, 1.0), (8, 4.0), (8, -4.0))]
    rollouts[0].outcome = Outcome.TRUNCATED_TOKENS
    rollouts[1].turns = [Turn(Action("cut", finish_reason="length"))]
    shaping = Shaping(scale=2.0, clip=3.0, truncated=0.5, overlong_buffer=4, longest=10)
    assert shaping(rollouts).tolist() == [1.0, 1.5 - 0.5, -3.0 - 0.5]
    assert replace(shaping, overlong_buffer=0)(rollouts).tolist() == [1.0, 1.5, -3.0]


def test_a_rollout_that_ended_by_itself_is_not_cut(make_rollout):
    rollout = make_rollout([([3], [4])], 1.0)
    rollout.turns = [Turn(Action("done", finish_reason="stop"))]
    assert Shaping(truncated=0.0)([rollout]).tolist() == [1.0]


@pytest.mark.parametrize("longest", [None, 30])
def test_a_buffer_is_within_the_longest_episode(longest):
    with pytest.raises(UserError, match="overlong_buffer is at most the (None|30) tokens"):
        Shaping(overlong_buffer=31, longest=longest)
