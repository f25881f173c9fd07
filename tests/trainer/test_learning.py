"""Each main algorithm makes a small model better, through the whole of `train`: rollouts, advantages, updates, transfer."""

import asyncio
from pathlib import Path

import pytest

from envhub.trainer import checkpoint
from envhub.trainer.config import resolve
from envhub.trainer.metrics import read_metrics
from envhub.trainer.run import train
from envhub.trainer.sft.config import resolve as resolve_sft
from envhub.trainer.sft.run import fine_tune

pytestmark = pytest.mark.slow

WORDS = '''
from envhub import GeneratedTasks, SingleTurnEnvironment, Task

def red(text):
    """The share of the words that are red."""
    return sum(word == "red" for word in text.split()) / max(1, len(text.split()))

class Words(SingleTurnEnvironment):
    """Write colours. The oracle writes any: which of them is paid for, no example shows."""
    tasks = GeneratedTasks("words", lambda rng: Task(f"{rng.randrange(10**4)}"))
    rewards = (red,)

    def oracle(self):
        return " ".join(["red", *(self.rng.choice(["red", "green", "blue"]) for _ in range(3))])
'''
MAIN = ["ppo", "reinforce", "reinforce_baseline", "rloo", "grpo", "dr_grpo"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The environment, and a model that writes colours but does not know which."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "words.py").write_text(WORDS)
    env = f"{folder / 'words.py'}:Words"
    config = resolve_sft(
        {"from_oracle": env, "model": "tiny:3m", "tasks": 128, "batch_size": 32, "steps": 12, "learning_rate": 3e-3,
         "tensorboard": False, "output": folder / "sft"}
    )  # fmt: skip
    run = asyncio.run(fine_tune(config))
    return env, checkpoint.finished(run / "checkpoints")[-1].path


@pytest.mark.parametrize("algo", MAIN)
def test_a_small_model_learns(begun: tuple[str, Path], tmp_path: Path, algo: str):
    env, model = begun
    config = resolve(
        {"preset": "test", "env": env, "model": str(model), "algo": algo, "output": tmp_path / "run", "steps": 10,
         "tasks_per_step": 4, "group_size": 8, "max_turn_tokens": 12, "learning_rate": 5e-4, "micro_tokens": 8192,
         "concurrency": 64, "eval_tasks": 24, "eval_samples": 2, "tensorboard": False}
    )  # fmt: skip
    before, after = (row for row in read_metrics(asyncio.run(train(config))) if row["kind"] == "eval")
    assert 0.05 < before["reward"] < 0.6
    assert after["reward_low"] > before["reward_high"] + 0.1
