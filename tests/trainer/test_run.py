"""Whole runs on a small model: what they leave, resuming, and failures on the way."""

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from envhub.agents.models import resolve_model
from envhub.errors import UserError
from envhub.ledger import Ledger
from envhub.records import RolloutStore, RunFolder, read_rollouts
from envhub.trainer import checkpoint
from envhub.trainer.config import resolve
from envhub.trainer.metrics import read_metrics
from envhub.trainer.run import train

pytestmark = pytest.mark.slow


EXACT = {"precision": "float32", "engine_options": {"dtype": "float32"}}  # also on CPUs with bf16 instructions


def run(output: Path, env: str, resume: Path | None = None, **values: object) -> Path:
    config = resolve({"preset": "test", "env": env, "output": output, "tensorboard": False, **values})
    return asyncio.run(train(config, resume=resume))


def test_a_run_leaves_a_folder_that_tells_all(tmp_path: Path, letters: str):
    folder = run(tmp_path / "run", letters, tensorboard=True, algo="reinforce_baseline", **EXACT)
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").glob("events*"))
    rows = read_metrics(folder)
    assert [(row["kind"], row["step"]) for row in rows] == [("eval", 0), ("train", 1), ("train", 2), ("eval", 2)]
    for row in rows[1:3]:
        ledger = Ledger.from_dict(row["ledger"])
        assert (ledger.in_flight, ledger.buffered, ledger.used) == (0, 0, 8 * row["step"])
        assert row["max_mismatch"] < 1e-3 and row["gradient_norm"] > 0
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        assert (store.count("train"), store.count("eval")) == (16, 8)
        versions = [
            {v for segment in rollout.trajectory.segments for v in segment.versions}
            for step in (1, 2)
            for rollout in store.iterate(phase="train", step=step)
        ]
    assert versions == [{0}] * 8 + [{1}] * 8
    assert json.loads((folder / "config.json").read_text())["algo"] == "reinforce_baseline"
    source = resolve_model(str(folder / "checkpoints" / "step-000002"))
    assert source.path.name == "model"


def test_the_weights_that_were_saved_are_not_those_it_began_with(tmp_path: Path, letters: str):
    from safetensors.torch import load_file

    folder = run(tmp_path / "run", letters, algo="grpo", steps=1, eval_tasks=0)
    before = load_file(resolve_model("tiny").path / "model.safetensors")
    after = load_file(folder / "checkpoints/step-000001/model/model.safetensors")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name].float(), after[name].float()) for name in before)


def test_a_stopped_run_goes_on_where_it_was_saved(tmp_path: Path, letters: str):
    folder = run(tmp_path / "run", letters, steps=2, eval_tasks=0)
    run(folder, letters, resume=folder, steps=4, eval_tasks=0)
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert Ledger.from_dict(rows[-1]["ledger"]).used == 32
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        assert store.count("train") == 32
        tasks = {rollout.task.id for rollout in store.iterate(phase="train")}
    assert len(tasks) == 8
    assert [item.step for item in checkpoint.finished(folder / "checkpoints")] == [2, 4]


def test_old_checkpoints_go_when_new_ones_are_safe(tmp_path: Path, letters: str):
    folder = run(tmp_path / "run", letters, steps=4, save_every=1, keep=2, eval_tasks=0)
    assert [item.step for item in checkpoint.finished(folder / "checkpoints")] == [3, 4]


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, letters: str):
    folder = run(tmp_path / "run", letters, steps=1, eval_tasks=0)
    for name in ("trainer.pt", "model/model.safetensors", "checkpoint.json"):
        file = folder / "checkpoints/step-000001" / name
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(UserError, match=f"step-000001 is damaged: .*{name}.*start a new run"):
            run(folder, letters, resume=folder, steps=2, eval_tasks=0)


def test_a_resumed_run_goes_on_after_a_half_written_row_and_refuses_another(tmp_path: Path, letters: str):
    folder = run(tmp_path / "run", letters, steps=1, eval_tasks=0)
    file = folder / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"step": 2, "ki')
    run(folder, letters, resume=folder, steps=2, eval_tasks=0)
    assert [row["step"] for row in read_metrics(folder)] == [1, 2]
    file.write_bytes(b"[]\n" + whole)
    with pytest.raises(UserError, match="metrics.jsonl, line 1"):
        run(folder, letters, resume=folder, steps=3, eval_tasks=0)


def test_faults_are_dropped_with_a_count_and_the_run_goes_on(tmp_path: Path, letters_source: str):
    file = tmp_path / "shaky.py"
    file.write_text(
        letters_source
        + "\nclass Shaky(Letters):\n    '''Fails for some seeds.'''\n"
        + "    async def step(self, action):\n"
        + "        if self.task.seed % 2:\n            raise OSError('the world broke')\n"
        + "        return await super().step(action)\n"
    )
    folder = run(tmp_path / "run", f"{file}:Shaky", steps=3, tasks_per_step=4, eval_tasks=0, retries=1)
    ledger = Ledger.from_dict(read_metrics(folder)[-1]["ledger"])
    assert ledger.dropped["environment"] > 0
    assert ledger.retried["environment"] == ledger.dropped["environment"]
    assert ledger.used + ledger.dropped.total() == ledger.issued == 48


def test_several_updates_and_a_kl_to_the_initial_model(tmp_path: Path, letters: str):
    folder = run(tmp_path / "run", letters, algo="grpo", updates_per_step=2, kl_coef=0.01, eval_tasks=0)
    rows = read_metrics(folder)
    assert rows[0]["kl"] >= 0 and rows[1]["kl"] > 0


def test_weights_travel_by_a_folder_too(tmp_path: Path, letters: str):
    folder = run(tmp_path / "run", letters, transfer="folder", eval_tasks=0, **EXACT)
    assert all(row["max_mismatch"] < 1e-3 for row in read_metrics(folder))


def test_a_folder_that_exists_or_is_in_use_is_refused(tmp_path: Path, letters: str):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="exists; go on with that training run"):
        run(tmp_path / "full", letters)
    with RunFolder.open(tmp_path / "busy"), pytest.raises(UserError, match="in use by process"):
        run(tmp_path / "busy", letters)
    with pytest.raises(UserError, match="no training run to resume"):
        run(tmp_path / "none", letters, resume=tmp_path / "none")


def test_the_main_job_on_a_small_model(tmp_path: Path):
    """The same command as the main job, its sizes those of the test preset."""
    command = [sys.executable, "-c", "from envhub.cli import main; main()", "train", "--env", "sandbox_code"]
    command += ["--algo", "reinforce_baseline", "--preset", "test", "--output", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "evaluation before training" in done.stdout and "evaluation after training" in done.stdout
    evaluated = subprocess.run(
        [*command[:3], "eval", "sandbox_code", "--model", str(tmp_path / "run/checkpoints/step-000002"), "--engine",
         "transformers", "--tasks", "2", "--max-turn-tokens", "16", "--json"],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["scored"] == 2
    assert (
        sqlite3.connect(tmp_path / "run/rollouts.sqlite").execute("SELECT count(*) FROM rollouts").fetchone()[0] == 24
    )


def test_the_weight_of_the_kl_follows_its_target_and_is_kept_over_a_resume(tmp_path: Path, letters: str):
    options = {
        "algo": "grpo",
        "kl_coef": 0.1,
        "kl_target": 1e-9,
        "kl_horizon": 8,
        "eval_tasks": 0,
        "updates_per_step": 2,
    }
    folder = run(tmp_path / "run", letters, steps=2, **options)
    assert checkpoint.finished(folder / "checkpoints")[-1].meta().kl_coef == pytest.approx(0.1 * 1.2 * 1.2)
    run(folder, letters, resume=folder, steps=3, **options)
    assert [row["kl_coef"] for row in read_metrics(folder)] == pytest.approx([0.1, 0.12, 0.144])


def test_a_reference_that_follows_the_policy_is_near_to_it(tmp_path: Path, letters: str):
    options = {"algo": "reinforce", "kl_coef": 0.01, "eval_tasks": 0, "steps": 4, "learning_rate": 3e-3}
    fixed = read_metrics(run(tmp_path / "fixed", letters, **options))
    moved = read_metrics(run(tmp_path / "moved", letters, reference_every=2, **options))
    assert abs(moved[2]["kl"]) < 1e-6 < abs(fixed[2]["kl"])


HALF = '''
class Half(Letters):
    """Every second task is not to be learnt: all of its answers are paid alike."""
    async def step(self, action):
        observation, reward, *rest = await super().step(action)
        return (observation, 0.0 if self.task.index % 2 else reward, *rest)
'''


ABOVE = '''
class Above(Letters):
    """Rewards that differ, and are all above 1."""
    async def step(self, action):
        observation, reward, *rest = await super().step(action)
        return (observation, 2.0 + reward, *rest)
'''


def test_groups_of_equal_rewards_are_replaced_and_counted(tmp_path: Path, letters_source: str):
    file = tmp_path / "half.py"
    file.write_text(letters_source + HALF)
    folder = run(
        tmp_path / "run", f"{file}:Half", steps=1, tasks_per_step=4, filter_rounds=8, eval_tasks=0, temperature=1.5
    )
    (row,) = read_metrics(folder)
    ledger = Ledger.from_dict(row["ledger"])
    assert ledger.used == 16 and row["groups_with_spread"] == 4
    assert ledger.dropped["no_spread"] == 4 * row["groups_filtered"] > 0
    assert row["epoch"] == 4 + row["groups_filtered"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kl_target": 0.1}, "kl_target is of the KL to a reference"),
        ({"reference_every": 2}, "reference_every is of the KL to a reference"),
        ({"filter_rounds": 2, "group_size": 1, "algo": "reinforce"}, "group_size is at least 2"),
        ({"critic_warmup": 2}, "critic_warmup is of a critic, and algorithm 'reinforce_baseline' has none"),
        ({"critic_warmup": 2, "algo": "ppo"}, "critic_warmup 2 is not below the 2 steps of the run"),
        ({"warmup_steps": 2}, "warmup_steps 2 is not below the 2 optimizer steps"),
    ],
)
def test_options_of_parts_that_are_not_there_are_refused(tmp_path: Path, letters: str, options, said: str):
    with pytest.raises(UserError, match=said):
        run(tmp_path / "run", letters, **options)
    assert not (tmp_path / "run").exists()


def test_updates_that_are_not_finite_stop_the_run_and_leave_their_rollouts(tmp_path: Path, letters: str):
    with pytest.raises(UserError, match="3 updates in a row were not finite"):
        run(tmp_path / "run", letters, algo="grpo", kl_coef=1e39, steps=4, eval_tasks=0)
    for step in (1, 2, 3):
        assert len(list(read_rollouts(tmp_path / "run" / f"skipped-step-{step}.jsonl"))) == 8


def test_a_first_update_that_moves_nothing_stops_the_run(tmp_path: Path, letters: str):
    with pytest.raises(UserError, match="the first update moved no parameter"):
        run(tmp_path / "run", letters, learning_rate=1e-30, eval_tasks=0)


@pytest.mark.parametrize("algo", ["reinforce_baseline", "ppo"])
def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(tmp_path: Path, letters: str, algo: str):
    from safetensors.torch import load_file

    options = {"algo": algo, "eval_tasks": 0, "engine_options": {"gather_seconds": 0.2}, "schedule": "linear"}
    whole = run(tmp_path / "whole", letters, steps=4, save_every=2, keep=2, **options)
    stopped = tmp_path / "stopped"
    shutil.copytree(whole, stopped)
    shutil.rmtree(stopped / "checkpoints" / "step-000004")
    run(stopped, letters, resume=stopped, steps=4, save_every=2, **options)
    first, second = (
        load_file(folder / "checkpoints/step-000004/model/model.safetensors") for folder in (whole, stopped)
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    rewards = [[row["reward"] for row in read_metrics(folder)] for folder in (whole, stopped)]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 4


@pytest.fixture
def echo(tmp_path: Path, letters_source: str) -> str:
    """That environment, with an oracle."""
    file = tmp_path / "echo.py"
    file.write_text(
        letters_source.replace("class Letters", "class Echo") + "    def oracle(self):\n        return 'aeiou' * 2\n"
    )
    return f"{file}:Echo"


def test_a_warm_start_on_the_oracle_lets_a_small_model_begin(tmp_path: Path, echo: str):
    folder = run(tmp_path / "run", echo, warm_start=12, steps=1, learning_rate=3e-3, algo="grpo", kl_coef=0.01)
    rows = read_metrics(folder)
    before, after = (row["reward"] for row in rows if row["kind"] == "eval" and row["step"] == 0)
    assert after > before + 0.3
    (row,) = (row for row in rows if row["kind"] == "train")
    assert row["kl"] == pytest.approx(0, abs=1e-4)  # to the model after the warm start


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_run_that_was_stopped_after_its_warm_start_goes_on_from_it(tmp_path: Path, echo: str, lora_rank: int):
    from safetensors.torch import load_file

    options = {
        "warm_start": 3, "steps": 2, "save_every": 1, "keep": 3, "learning_rate": 3e-3, "algo": "grpo", "kl_coef": 0.01,
        "lora_rank": lora_rank, "eval_tasks": 2, "engine_options": {"gather_seconds": 0.2},
    }  # fmt: skip
    whole, stopped = run(tmp_path / "whole", echo, **options), tmp_path / "stopped"
    assert [item.step for item in checkpoint.finished(whole / "checkpoints")] == [0, 1, 2]
    shutil.copytree(whole, stopped)
    for step in (1, 2):
        shutil.rmtree(stopped / f"checkpoints/step-{step:06d}")
    run(stopped, echo, resume=stopped, **options)
    first, second = (
        load_file(next((folder / "checkpoints/step-000002/model").glob("*.safetensors"))) for folder in (whole, stopped)
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    told = [
        [(row["step"], row["kind"], row.get("when"), row["reward"], row.get("kl")) for row in read_metrics(folder)]
        for folder in (whole, stopped)
    ]
    assert told[0] == told[1]
    assert [row[:3] for row in told[0]] == [
        (0, "eval", "before"), (0, "eval", "warm"), (1, "train", None), (2, "train", None), (2, "eval", "after"),
    ]  # fmt: skip
    counts = []
    for folder in (whole, stopped):
        with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
            counts.append((store.count("eval"), store.count("train")))
    assert counts == [(6, 16), (6, 16)]


def test_an_evaluation_after_the_warm_start_that_is_missing_is_made_up_for(tmp_path: Path, echo: str):
    options = {"warm_start": 1, "steps": 1, "learning_rate": 3e-3, "eval_tasks": 2, "keep": 2, "save_every": 1}
    folder = run(tmp_path / "run", echo, **options)
    shutil.rmtree(folder / "checkpoints/step-000001")
    rows = [json.dumps(row) + "\n" for row in read_metrics(folder)]
    (folder / "metrics.jsonl").write_text(rows[0])
    run(folder, echo, resume=folder, **options)
    assert [json.loads(row)["reward"] for row in rows] == [row["reward"] for row in read_metrics(folder)]
    assert [row.get("when") for row in read_metrics(folder)] == ["before", "warm", None, "after"]


def test_a_warm_start_competes_for_the_best_checkpoint_and_stays_while_it_is(tmp_path: Path, echo: str):
    folder = run(
        tmp_path / "run",
        echo,
        warm_start=8,
        steps=2,
        eval_every=1,
        save_every=1,
        keep=1,
        learning_rate=3e-3,
        eval_tasks=4,
    )
    rewards = {row["step"]: row["reward"] for row in read_metrics(folder) if row["kind"] == "eval"}
    best = max(sorted(rewards), key=lambda step: rewards[step])
    assert (folder / "checkpoints/best").resolve().name == f"step-{best:06d}"
    assert {item.step for item in checkpoint.finished(folder / "checkpoints")} == {best, 2}


def test_a_warm_start_needs_an_oracle(tmp_path: Path):
    file = tmp_path / "bare.py"
    file.write_text(
        "from envhub import Environment\nclass Bare(Environment):\n    def reset(self, **_): return 'x', {}\n"
        "    def step(self, action): return '', 1.0, True, False, {}\n"
    )
    with pytest.raises(UserError, match="warm_start learns from an oracle, and environment .* has none"):
        run(tmp_path / "run", f"{file}:Bare", warm_start=2)


def test_a_step_that_teaches_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], letters_source: str):
    file = tmp_path / "flat.py"
    file.write_text(letters_source.replace("return sum(", "return 0 * sum("))
    run(tmp_path / "run", f"{file}:Letters", eval_tasks=0)
    assert capsys.readouterr().out.count("warning: nothing was learnt, the rewards of no group differ") == 2


def test_it_is_also_said_where_shaping_makes_all_rewards_equal(tmp_path: Path, letters_source: str, capsys):
    file = tmp_path / "above.py"
    file.write_text(letters_source + ABOVE)
    folder = run(
        tmp_path / "run", f"{file}:Above", algo="rloo", steps=1, reward_clip=1.0, eval_tasks=0, temperature=1.5
    )
    assert read_metrics(folder)[0]["groups_with_spread"] > 0
    assert "warning: nothing was learnt, the rewards of no group differ" in capsys.readouterr().out
