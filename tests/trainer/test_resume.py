"""Runs that are gone on with: what is said about what their folders hold, and what is refused."""

import asyncio
import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from envhub.cli.app import run as command_line
from envhub.errors import UserError
from envhub.records import RolloutStore
from envhub.trainer.config import resolve
from envhub.trainer.folder import saved_config
from envhub.trainer.metrics import read_metrics
from envhub.trainer.progress import Progress
from envhub.trainer.run import train

VALUES = {"preset": "test", "env": "guess_number", "tensorboard": False, "eval_tasks": 0, "max_turns": 1}


def run(output: Path, **values: object) -> str:
    """Train, going on with the folder where it is there; returns what was said."""
    said = Progress(Console(file=io.StringIO(), soft_wrap=True))
    config = resolve({**VALUES, "output": output, **values})
    asyncio.run(train(config, resume=output if output.exists() else None, progress=said))
    return said.console.file.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(folder, steps=1)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """That run, to be gone on with."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_nothing_is_said_where_nothing_is_wrong(folder: Path):
    said = run(folder, steps=2)
    assert "going on after step 1" in said
    assert "dropped" not in said and "missing" not in said and "first checkpoint" not in said


@pytest.mark.slow
def test_a_run_without_a_checkpoint_says_that_it_starts_anew(folder: Path):
    shutil.rmtree(folder / "checkpoints")
    said = run(folder, steps=1)
    assert said.count("the run ended before its first checkpoint: starting from step 1\n") == 1
    assert "metrics.jsonl: rows dropped: 1 of steps that are run again\n" in said
    assert [row["step"] for row in read_metrics(folder)] == [1]
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        assert store.count("train") == 8


@pytest.mark.slow
def test_fewer_steps_than_are_made_are_refused_and_as_many_leave_nothing_to_do(folder: Path):
    assert "step 1 of 1 is made: nothing is left to train\n" in run(folder, steps=1)
    run(folder, steps=2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(UserError, match="has made 2 steps already; give --steps 3 or more to go on"):
        run(folder, steps=1)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_dropped_metrics_and_missing_rollouts_are_said(folder: Path):
    file = folder / "metrics.jsonl"
    row = json.loads(file.read_text())
    with file.open("a") as lines:
        lines.writelines(json.dumps({**row, "step": step}) + "\n" for step in (1, 2, 3))
    (folder / "rollouts.sqlite").unlink()
    said = run(folder, steps=2)
    assert "metrics.jsonl: rows dropped: 2 of steps that are run again, 1 doubled\n" in said
    assert "rollouts.sqlite was missing: a new one is begun, without the rollouts of earlier steps\n" in said
    assert [row["step"] for row in read_metrics(folder)] == [1, 2]
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        assert (store.count("train"), len(list(store.iterate(step=2)))) == (8, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rollouts.sqlite", "move it away to go on without its rollouts"),
        ("checkpoints/step-000001/trainer.pt", "no earlier one is there, so start a new run"),
        ("checkpoints/step-000001/model/tokenizer.json", "no earlier one is there, so start a new run"),
    ],
)
def test_a_damaged_file_is_refused_and_left_alone(
    folder: Path, name: str, said: str, capfd: pytest.CaptureFixture[str]
):
    (folder / name).write_bytes(b"{}" + b"\0" * 2000 if name.endswith("sqlite") else b"{}")
    before = {path: path.read_bytes() for path in (folder / name, folder / "metrics.jsonl")}
    code = command_line(["train", "--resume", str(folder), "--steps", "2"])
    err = capfd.readouterr().err
    line = err.strip().splitlines()[-1]
    assert code == 2 and line.startswith("envhub: ") and "Traceback" not in err
    assert name in line and said in line
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "it has no config.json"),
        ({}, "its config.json names no env"),
        (
            {"env": "guess_number", "model": "tiny", "samples": 1},
            "has 'samples', which is no setting of a training run",
        ),
        ({"architectures": ["Llama"]}, "has 'architectures', which is no setting"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, config: dict[str, object] | None, said: str, capfd: pytest.CaptureFixture[str]
):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert command_line(["train", "--resume", str(tmp_path)]) == 2
    line = capfd.readouterr().err.strip()
    assert line.startswith(f"envhub: there is no training run to resume in {tmp_path}: ") and said in line
    with pytest.raises(UserError, match="no training run to resume"):
        run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"config.json"}


def test_the_configuration_of_a_run_is_found(tmp_path: Path):
    config = resolve({**VALUES, "output": tmp_path}).model_dump(mode="json")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert saved_config(tmp_path) == config


@pytest.mark.slow
def test_a_run_starts_again_from_its_own_configuration(finished: Path, tmp_path: Path):
    again = tmp_path / "again"
    assert command_line(["train", "--config", str(finished / "config.json"), "--output", str(again)]) == 0
    first, second = saved_config(finished), saved_config(again)
    assert {key for key in first if first[key] != second[key]} == {"output"}
    assert first["seed"] == second["seed"] == 0 and first.keys() == second.keys()
    assert [row["epoch"] for row in read_metrics(again)] == [row["epoch"] for row in read_metrics(finished)]


@pytest.mark.slow
def test_updates_that_are_not_finite_are_counted_over_a_stop(tmp_path: Path):
    options = {"algo": "grpo", "kl_coef": 1e39}
    run(tmp_path / "run", steps=2, **options)
    with pytest.raises(UserError, match="3 updates in a row were not finite"):
        run(tmp_path / "run", steps=4, **options)
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2]


def test_a_resumed_run_may_change_what_does_not_make_it_another(folder: Path, capfd: pytest.CaptureFixture[str]):
    flags = ["train", "--resume", str(folder), "--dry-run"]
    assert command_line([*flags, "--steps", "3", "--learning-rate", "0.5", "--best", "none", "--eval-tasks", "3"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["steps"], shown["learning_rate"], shown["best"], shown["eval_tasks"]) == (3, 0.5, "none", 3)
    for flag, value in (("--algo", "grpo"), ("--seed", "3"), ("--group-size", "2"), ("--env", "letter_count")):
        assert command_line([*flags, flag, value]) == 2
        assert f"a resumed run keeps its configuration: leave out {flag}" in capfd.readouterr().err


def test_a_run_whose_configuration_was_edited_is_refused(folder: Path):
    with pytest.raises(
        UserError, match="is of another configuration: its algo is 'reinforce_baseline', the run's 'grpo'"
    ):
        run(folder, steps=2, algo="grpo")
