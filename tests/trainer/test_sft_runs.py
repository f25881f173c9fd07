"""Supervised runs as wholes: configuration from files, restarts, resuming, stopping, and their curves."""

import asyncio
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from envhub.cli.app import run as cli
from envhub.errors import UserError
from envhub.records import RolloutStore
from envhub.trainer import checkpoint
from envhub.trainer.metrics import read_metrics
from envhub.trainer.progress import Progress
from envhub.trainer.sft.config import SftConfig, resolve
from envhub.trainer.sft.run import fine_tune, saved_run

from .test_metrics import documented, numbers_of
from .test_plotting import texts

BASE = {"model": "tiny", "tensorboard": False, "learning_rate": 3e-3}
ORACLE = {
    "from_oracle": "guess_number",
    "env_config": {"high": 20},
    "tasks": 12,
    "batch_size": 4,
    "eval_fraction": 0.25,
}


def conversations(path: Path, *answers: str) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": text}]}
        for text in answers
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(
    output: Path, *, resume: bool = False, on_line: Callable[[str], object] = lambda text: None, **values: Any
) -> str:
    """A run with what it says."""

    class Heard(Progress):
        def say(self, text: str) -> None:
            super().say(text)
            on_line(text)

    said = Heard(Console(file=io.StringIO(), soft_wrap=True))
    config = resolve({**BASE, "output": output, **values})
    asyncio.run(fine_tune(config, resume=output if resume else None, progress=said))
    return said.console.file.getvalue()


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    (file,) = (folder / f"checkpoints/step-{step:06d}/model").glob("*.safetensors")
    return load_file(file)


def curve(folder: Path) -> list[tuple[str, int, float]]:
    return [(row["kind"], row["step"], row["nll"]) for row in read_metrics(folder)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps on an oracle, saved at the second too."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(folder, **ORACLE, steps=4, save_every=2, eval_every=2, schedule="linear")
    return folder


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Path:
    """The same, as a kill after the third step left it."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoints/step-000004")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= 3]
    (folder / "metrics.jsonl").write_text("".join(kept) + '{"step": 4, "ki')
    return folder


# Configuration


def test_a_file_holds_any_setting_and_flags_win(tmp_path: Path):
    file = tmp_path / "sft.toml"
    file.write_text('from_oracle = "guess_number"\ntasks = 8\nepochs = 2.0\nseed = 3\n[env_config]\nhigh = 20\n')
    config = resolve({"seed": 4, "steps": 5}, file=file)
    assert (config.from_oracle, config.tasks, config.env_config) == ("guess_number", 8, {"high": 20})
    assert (config.seed, config.steps, config.epochs) == (4, 5, None)
    other = resolve({"data": "chat.jsonl"}, file=file)
    assert (other.source, other.seed, other.tasks, other.env_config) == ("data", 3, SftConfig().tasks, {})


@pytest.mark.parametrize(
    "values", [{"data": "chat.jsonl", "epochs": 2.0}, ORACLE, {"from_rollouts": "runs/x", "steps": 3}]
)
def test_a_saved_configuration_gives_the_same_run(tmp_path: Path, values: dict[str, Any]):
    config = resolve({**BASE, **values, "track": ["wandb"]})
    (tmp_path / "config.json").write_text(json.dumps(config.model_dump(mode="json")))
    assert resolve({}, file=tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('data = "a"\nepoch = 2', "no configuration key 'epoch' .*did you mean 'epochs'"),
        ('data = "a"\nfrom_oracle = "b"', "leave out --data or --from-oracle"),
        ('data = "a"\ntasks = 3', "--tasks goes with --from-oracle"),
        ("data = ", "is no TOML"),
        ("seed = 1", "say what to train on"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, said: str):
    (tmp_path / "sft.toml").write_text(text)
    with pytest.raises(UserError, match=said):
        resolve({}, file=tmp_path / "sft.toml")


@pytest.mark.slow
def test_a_run_starts_again_from_its_own_configuration(finished: Path, tmp_path: Path):
    arguments = ["sft", "--config", str(finished / "config.json"), "--output", str(tmp_path / "again")]
    assert cli([*arguments, "--steps", "2", "--schedule", "constant"]) == 0
    first, second = saved_run(finished), saved_run(tmp_path / "again")
    assert {key for key in first if first[key] != second[key]} == {"output", "steps", "schedule"}
    assert curve(tmp_path / "again")[:2] == curve(finished)[:2]


# Going on


@pytest.mark.slow
def test_a_resumed_run_is_the_run_that_was_not_stopped(
    finished: Path, stopped: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli(["sft", "--resume", str(stopped)]) == 0
    said = capsys.readouterr().out
    assert "going on after step 2\n" in said
    assert "metrics.jsonl: rows dropped: 1 of steps that are run again, 1 unfinished\n" in said
    assert curve(stopped) == curve(finished) and len(curve(stopped)) == 7
    one, other = weights(finished, 4), weights(stopped, 4)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    with RolloutStore(stopped / "rollouts.sqlite", read_only=True) as store:
        assert store.count("oracle") == 12
    assert cli(["sft", "--resume", str(stopped), "--steps", "5"]) == 0
    assert [row[:2] for row in curve(stopped)][-2:] == [("sft", 5), ("held_out", 5)]


@pytest.mark.slow
def test_a_resumed_adapter_is_the_adapter_that_was_not_stopped(tmp_path: Path):
    data = conversations(tmp_path / "chat.jsonl", "one", "two", "three")
    values = {"data": data, "batch_size": 2, "steps": 3, "save_every": 1, "keep": 3, "lora_rank": 2}
    run(tmp_path / "whole", **values)
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    for step in (2, 3):
        shutil.rmtree(tmp_path / f"stopped/checkpoints/step-{step:06d}")
    run(tmp_path / "stopped", resume=True, **values)
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")
    one, other = weights(tmp_path / "whole", 3), weights(tmp_path / "stopped", 3)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts_anew_and_doubles_nothing(stopped: Path, finished: Path):
    shutil.rmtree(stopped / "checkpoints")
    said = run(stopped, resume=True, **ORACLE, steps=2, schedule="linear")
    assert "the run ended before its first checkpoint: starting from step 1\n" in said
    assert [row[:2] for row in curve(stopped)] == [("held_out", 0), ("sft", 1), ("sft", 2), ("held_out", 2)]
    with RolloutStore(stopped / "rollouts.sqlite", read_only=True) as store:
        assert store.count("oracle") == 12


@pytest.mark.slow
def test_a_cancelled_run_ends_its_step_and_saves_it(tmp_path: Path):
    data = conversations(tmp_path / "chat.jsonl", "one", "two")

    def cancel(text: str) -> None:
        if text.startswith("step 2/"):
            (task,) = (task for task in asyncio.all_tasks() if task.get_coro().__name__ == "fine_tune")
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        run(tmp_path / "run", data=data, steps=9, on_line=cancel)
    assert [item.step for item in checkpoint.finished(tmp_path / "run/checkpoints")] == [2]
    assert [row[1] for row in curve(tmp_path / "run")] == [1, 2]
    run(tmp_path / "run", resume=True, data=data, steps=3)
    assert [row[1] for row in curve(tmp_path / "run")] == [1, 2, 3]
    with pytest.raises(UserError, match="has made 3 steps already; give --steps 4 or more"):
        run(tmp_path / "run", resume=True, data=data, steps=2)
    assert [row[1] for row in curve(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.slow
def test_a_run_that_is_stopped_before_it_scores_its_held_out_part_does_so_when_it_goes_on(tmp_path: Path):
    values = {"data": conversations(tmp_path / "chat.jsonl", "one", "two"), "eval_fraction": 0.5, "steps": 1}

    def cancel(text: str) -> None:
        if text.startswith("step 1/"):
            (task,) = (task for task in asyncio.all_tasks() if task.get_coro().__name__ == "fine_tune")
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        run(tmp_path / "run", on_line=cancel, **values)
    scored = [("held_out", 0), ("sft", 1)]
    assert [row[:2] for row in curve(tmp_path / "run")] == scored
    for _ in range(2):
        run(tmp_path / "run", resume=True, **values)
        assert [row[:2] for row in curve(tmp_path / "run")] == [*scored, ("held_out", 1)]


@pytest.mark.slow
def test_other_samples_are_refused_and_everything_is_left_alone(tmp_path: Path):
    data = conversations(tmp_path / "chat.jsonl", "one", "two")
    run(tmp_path / "run", data=data, steps=1)
    conversations(data, "one", "three")
    before = {
        path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"
    }
    with pytest.raises(
        UserError, match="step-000001 is of other samples, or of other batches, than .*config.json gives"
    ):
        run(tmp_path / "run", resume=True, data=data, steps=2)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--batch-size", "2"], "a resumed run keeps its configuration: leave out --batch-size"),
        (["--data", "chat.jsonl"], "leave out --data"),
        (["--config", "x.toml"], "leave out --config"),
    ],
)
def test_a_resumed_run_keeps_its_configuration(
    finished: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
):
    assert cli(["sft", "--resume", str(finished), *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_of_another_kind_of_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for text, said in (
        (None, "it has no config.json"),
        ('{"env": "guess_number", "model": "tiny"}', "has 'env', which is no setting of a supervised run"),
        ('{"model": "tiny"}', "its config.json names no data or from_oracle or from_rollouts"),
    ):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        assert cli(["sft", "--resume", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"envhub: there is no supervised run to resume in {tmp_path}: ") and said in error


# Curves


def test_the_curve_of_a_supervised_run_is_drawn(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert (finished / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert cli(["plot", str(finished), "--output", str(tmp_path / "curve.svg")]) == 0
    shown = texts(tmp_path / "curve.svg")
    assert {"NLL of a token (nats)", "token accuracy", "training samples", "held-out samples"} <= shown
    assert cli(["plot", "--list", str(finished)]) == 0
    assert {"nll", "accuracy", "learning_rate"} <= set(capsys.readouterr().out.split())


def test_without_held_out_samples_only_the_nll_is_drawn(tmp_path: Path):
    rows = [{"step": step, "kind": "sft", "nll": 1 / step} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli(["plot", str(tmp_path), "--output", str(tmp_path / "curve.svg")]) == 0
    shown = texts(tmp_path / "curve.svg")
    assert "NLL of a token (nats)" in shown and not {"token accuracy", "held-out samples", "mean reward"} & shown


@pytest.mark.slow
def test_every_number_of_a_run_is_in_the_reference(finished: Path):
    assert numbers_of(finished, "sft", "held_out") == documented("sft", "held_out")


@pytest.mark.slow
def test_the_end_says_what_is_there_and_what_can_be_done_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "run"
    given = ["--from-oracle", "guess_number", "--tasks", "2", "--steps", "1", "--model", "tiny", "--no-tensorboard"]
    assert cli(["sft", *given, "--quiet", "--lora-rank", "2", "--output", str(folder)]) == 0
    assert capsys.readouterr().out == (
        f"done: {folder} (curve.png, metrics.jsonl, rollouts.sqlite, checkpoints/)\n"
        f"next: envhub merge {folder} {folder}-merged && envhub train --env guess_number --model {folder}-merged\n"
    )
