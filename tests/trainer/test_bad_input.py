"""What cannot be trained with is refused or counted, in one clear line, before it does harm."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from envhub.agents.models import resolve_model
from envhub.cli.app import run as cli
from envhub.errors import UserError
from envhub.tasks import Task
from envhub.trainer.algorithms import RLOO
from envhub.trainer.batch import build_rows
from envhub.trainer.config import resolve
from envhub.trainer.metrics import read_metrics
from envhub.trainer.model import load_model
from envhub.trainer.optimizer import Optimization, Stepper
from envhub.trainer.plan import plan
from envhub.trainer.reference import find_reference
from envhub.trainer.run import train
from envhub.trainer.strategy import TorchStrategy

REWARDS = '''
import numpy, torch
from envhub import GeneratedTasks, SingleTurnEnvironment, Task

ODD = [float("nan"), float("inf"), -float("inf"), "1", None, [1.0], numpy.array([1.0, 2.0]), torch.ones(2)]

def odd(task):
    """Of every third task only a number."""
    return len(task.prompt) / 10 if task.index % 3 == 0 else ODD[task.index % len(ODD)]

class Odd(SingleTurnEnvironment):
    """Rewards that are none."""
    tasks = GeneratedTasks("odd", lambda rng: Task("x" * rng.randrange(1, 9)))
    rewards = (odd,)
'''


@pytest.mark.slow
def test_rewards_that_are_no_numbers_are_faults_and_never_0(tmp_path: Path):
    (tmp_path / "odd.py").write_text(REWARDS)
    config = resolve(
        {"preset": "test", "env": f"{tmp_path / 'odd.py'}:Odd", "algo": "reinforce", "output": tmp_path / "run", "steps": 1,
         "tasks_per_step": 24, "group_size": 1, "max_turn_tokens": 2, "retries": 0, "eval_tasks": 0, "tensorboard": False}
    )  # fmt: skip
    (row,) = read_metrics(asyncio.run(train(config)))
    assert (row["rollouts"], row["dropped"]) == (8, 16)
    assert row["reward"] >= 0.1  # of the eight alone
    assert row["ledger"]["used"] == 8 and sum(row["ledger"]["dropped"].values()) == 16


def test_a_group_of_different_tasks_is_refused(make_rollout):
    first, second = make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)
    other = replace(second, task=Task("another", id="train/7", index=7))
    with pytest.raises(
        ValueError, match="group 'a' have different tasks \\('' and 'train/7'\\).*a group for each task"
    ):
        build_rows([first, other], RLOO)
    assert len(build_rows([first, replace(other, group="b")], RLOO)) == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--learning-rate", "0"], "learning_rate: .*greater than 0"),
        (["--learning-rate", "-1e-5"], "learning_rate: .*greater than 0"),
        (["--algo", "ppo", "--critic-learning-rate", "0"], "critic_learning_rate: .*greater than 0"),
        (["--updates-per-step", "9"], "updates_per_step 9 is more than the 8 rollouts of a step"),
        (["--warmup-steps", "2", "--steps", "2"], "warmup_steps 2 is not below the 2 optimizer steps"),
        (["--algo", "grpo", "--group-size", "1"], "'grpo' compares the rollouts of a task: group_size is at least 2"),
        (["--minimum-group", "5"], "minimum_group 5 is larger than group_size 4"),
        (["--top-p", "0.9"], "top_p 0.9 cuts the engine's distribution.*or set correction to none"),
        (["--top-p", "0"], "top_p: .*greater than 0"),
        (["--reference", "tiny"], "reference is of the KL to a reference, which has no weight: set kl_coef above 0"),
        (["--reference", "tiny", "--kl-coef", "1", "--reference-every", "2"], "would forget the one that reference names"),
        (["--reference", "no/where/at/all", "--kl-coef", "1"], "no/where/at/all"),
        (["--correction", "tis", "--correction-low", "1"], "'tis' has no correction_low"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_line_and_exit_code_2(flags, said, capsys):
    assert cli(["train", "--env", "guess_number", "--preset", "test", "--dry-run", *flags]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert re.search(said, err), err


@pytest.fixture
def copied(tmp_path: Path, tiny_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path, tmp_path / "other"))


def test_a_reference_of_another_vocabulary_is_refused_before_anything_starts(copied: Path, tmp_path: Path):
    from transformers import AutoTokenizer

    tiny = resolve_model("tiny")
    assert find_reference(str(copied), tiny, 0.1) == copied
    assert find_reference(None, tiny, 0.1) == tiny.path and find_reference(str(copied), tiny, 0.0) is None
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(copied)
    with pytest.raises(
        UserError, match="its vocabulary is another; token 'zebra' is 1024 in the reference and not there"
    ):
        find_reference(str(copied), tiny, 0.1)
    config = resolve(
        {"preset": "test", "env": "guess_number", "kl_coef": 0.1, "reference": str(copied), "output": tmp_path / "run"}
    )
    with pytest.raises(UserError, match="take a reference of the same family, or leave it out"):
        asyncio.run(train(config))
    assert not (tmp_path / "run").exists()


def test_a_reference_with_fewer_logits_than_tokens_is_refused(copied: Path):
    shape = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**shape, "vocab_size": 512}))
    with pytest.raises(UserError, match="it has logits of 512 tokens, and the vocabulary needs 1024"):
        find_reference(str(copied), resolve_model("tiny"), 0.1)


@pytest.mark.slow
def test_the_kl_is_to_the_reference_that_is_named(copied: Path, tmp_path: Path):
    weights = load_file(copied / "model.safetensors")
    torch.manual_seed(0)
    for name, tensor in weights.items():
        weights[name] = tensor + 0.01 * torch.randn_like(tensor)
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    values = {"env": "guess_number", "algo": "grpo", "kl_coef": 0.1, "steps": 1, "max_turns": 1, "max_turn_tokens": 4}
    kl = {}
    for name, reference in (("initial", None), ("named", str(copied))):
        options = {"reference": reference, "output": tmp_path / name, "eval_tasks": 0, "tensorboard": False}
        (row,) = read_metrics(asyncio.run(train(resolve({"preset": "test", **values, **options}))))
        kl[name] = row["kl"]
    assert abs(kl["initial"]) < 1e-6 < kl["named"]


def rows_of_two(make_rollout):
    return build_rows([make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)], RLOO)


def test_tied_layers_stay_one_and_are_saved_so(tiny_path: Path, tmp_path: Path, make_rollout):
    strategy = TorchStrategy(tiny_path, Optimization(learning_rate=1e-2, precision="float32"), device="cpu")
    before = strategy.model.get_input_embeddings().weight.detach().clone()
    strategy.step(rows_of_two(make_rollout), RLOO, 1.0, None, None)
    table, head = strategy.model.get_input_embeddings().weight, strategy.model.get_output_embeddings().weight
    assert table is head and not torch.equal(before, table)
    strategy.save_model(tmp_path / "saved")
    again = load_model(tmp_path / "saved", "cpu")
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert torch.equal(again.get_input_embeddings().weight, table)


def test_frozen_parameters_stay_and_a_model_of_none_else_is_refused(tiny_path: Path, make_rollout):
    options = Optimization(learning_rate=1e-2, precision="float32")
    strategy = TorchStrategy(tiny_path, options, device="cpu")
    layer = strategy.model.get_decoder().layers[0]
    layer.requires_grad_(False)
    strategy.stepper = Stepper(strategy.model, options)
    before = {name: tensor.clone() for name, tensor in strategy.named_tensors().items()}
    report = strategy.step(rows_of_two(make_rollout), RLOO, 1.0, None, None)
    assert not report.skipped
    moved = {name for name, tensor in strategy.named_tensors().items() if not torch.equal(before[name], tensor)}
    assert moved and not any("layers.0." in name for name in moved)
    strategy.model.requires_grad_(False)
    with pytest.raises(UserError, match="no parameters to train: all are frozen"):
        Stepper(strategy.model, options)


def test_a_plan_that_divides_unevenly_is_made():
    assert plan(resolve({"preset": "test", "env": "guess_number", "updates_per_step": 3})).algorithm


BROKEN = '''
from envhub import GeneratedTasks, SingleTurnEnvironment, Task

def broken(task):
    raise ZeroDivisionError("a reward that fails")

class Broken(SingleTurnEnvironment):
    """Rewards that fail."""
    tasks = GeneratedTasks("broken", lambda rng: Task("x" * rng.randrange(1, 9)))
    rewards = (broken,)
'''
SMALL = {"preset": "test", "steps": 2, "tasks_per_step": 2, "group_size": 2, "max_turn_tokens": 2, "retries": 0,
         "eval_tasks": 0, "tensorboard": False}  # fmt: skip


@pytest.mark.slow
def test_a_short_run_without_any_rollout_names_the_fault(tmp_path: Path, capsys):
    (tmp_path / "broken.py").write_text(BROKEN)
    config = resolve({**SMALL, "env": f"{tmp_path / 'broken.py'}:Broken", "algo": "grpo", "output": tmp_path / "run"})
    with pytest.raises(
        UserError, match=r"2 steps in a row had no rollout to train on; .*'reward:broken' \(4 of 4.*ZeroDivision"
    ):
        asyncio.run(train(config))
    assert "step 1: warning: no rollout to train on; the commonest fault is 'reward:broken'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_samples_no_token_says_why(tmp_path: Path, letters: str):
    config = resolve(
        {**SMALL, "env": letters, "algo": "grpo", "output": tmp_path / "run", "engine_options": {"max_context": 10}}
    )
    with pytest.raises(
        UserError, match="2 steps in a row had no sampled token to train on; the commonest outcome is 'truncated"
    ):
        asyncio.run(train(config))


@pytest.mark.slow
def test_equal_rewards_are_said_where_no_groups_are_compared(tmp_path: Path, letters_source: str, capsys):
    (tmp_path / "flat.py").write_text(letters_source.replace("return sum(", "return 0 * sum("))
    config = resolve(
        {**SMALL, "env": f"{tmp_path / 'flat.py'}:Letters", "algo": "reinforce", "output": tmp_path / "run"}
    )
    asyncio.run(train(config))
    assert "warning: nothing was learnt, the gradient is 0" in capsys.readouterr().out


def test_weights_that_are_not_finite_are_refused(copied: Path):
    weights = load_file(copied / "model.safetensors")
    name = next(iter(weights))
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="has weights that are not finite, such as .*; copy or save it again"):
        load_model(copied, "cpu")


def test_a_model_with_settings_of_sampling_can_be_saved_again(copied: Path, tmp_path: Path):
    (copied / "generation_config.json").write_text('{"eos_token_id": 2, "temperature": 0.6, "top_p": 0.9}')
    TorchStrategy(copied, Optimization(), device="cpu").save_model(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "generation_config.json").read_text())["temperature"] == 0.6


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"steps": True}, "steps: a number or a text is wanted, not true"),
        ({"learning_rate": True}, "learning_rate: a number or a text is wanted"),
        ({"learning_rate": 1e4}, "learning_rate: .*less than or equal to 1000"),
        ({"eval_tasks": 0, "eval_every": 1}, "eval_every is of evaluations, and eval_tasks 0 leaves them all out"),
        ({"eval_tasks": 0, "eval_split": "nosuch"}, "eval_split is of evaluations"),
        ({"track_project": "mine"}, "track_project is without effect where nothing is tracked"),
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, object], said: str):
    with pytest.raises(UserError, match=said):
        plan(resolve({"preset": "test", "env": "guess_number", **values}))


@pytest.mark.slow
def test_another_model_is_another_run_and_a_changed_environment_is_said(tmp_path: Path, letters: str, capsys):
    values = {**SMALL, "env": letters, "algo": "grpo", "output": tmp_path / "run"}
    folder = asyncio.run(train(resolve(values)))
    with pytest.raises(UserError, match="its model is 'tiny', the run's 'tiny:3m'"):
        asyncio.run(train(resolve({**values, "model": "tiny:3m", "steps": 3}), resume=folder))
    file = Path(letters.rpartition(":")[0])
    file.write_text(file.read_text().replace("aeiou", "aeio"))
    asyncio.run(train(resolve({**values, "steps": 3}), resume=folder))
    assert "warning: the source of environment" in capsys.readouterr().out


def test_a_path_with_a_nul_is_the_users_mistake(capsys):
    assert cli(["train", "--env", "guess_number", "--preset", "test", "--resume", "a\0b"]) == 2
    assert "NUL" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_reader_is_gone_goes_on(tmp_path: Path, letters: str):
    command = [sys.executable, "-m", "envhub.cli", "train", "--env", letters, "--preset", "test", "--steps", "3",
               "--eval-tasks", "0", "--plain", "--output", str(tmp_path / "run")]  # fmt: skip
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "checkpoints" / "step-000003").is_dir()
