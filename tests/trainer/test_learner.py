"""The update of a step: what is done even where there is nothing to learn from."""

from pathlib import Path

import torch

from envhub.trainer.algorithms import RLOO
from envhub.trainer.batch import build_rows
from envhub.trainer.config import resolve
from envhub.trainer.learner import Learner
from envhub.trainer.optimizer import Optimization
from envhub.trainer.shaping import Shaping
from envhub.trainer.strategy import TorchStrategy


def test_a_reference_is_refreshed_when_it_is_time_even_in_a_step_without_rollouts(
    tiny_path: Path, tmp_path: Path, make_rollout
):
    rollouts = [make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)]
    rows = build_rows(rollouts, RLOO)
    config = resolve({"preset": "test", "env": "guess_number", "algo": "rloo", "kl_coef": 0.1, "reference_every": 2})
    strategy = TorchStrategy(
        tiny_path, Optimization(learning_rate=1e-2, precision="float32"), reference=tiny_path, device="cpu"
    )
    learner = Learner(config, RLOO.with_options(kl_coef=0.1), Shaping(), strategy, tmp_path, print)
    assert learner.update(rollouts, 0)["kl"] == 0.0
    assert not torch.equal(strategy.score(rows, 1.0), strategy.score(rows, 1.0, reference=True))
    assert learner.update([], 1) == {}
    assert torch.equal(strategy.score(rows, 1.0), strategy.score(rows, 1.0, reference=True))
