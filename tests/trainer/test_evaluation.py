"""Evaluation during training on several environments: what a run leaves and says of it, and what a resumed one makes up for."""

import asyncio
import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from envhub.cli.app import run as command_line
from envhub.errors import UserError
from envhub.messages import Action, Message, Observation
from envhub.records import RolloutStore
from envhub.rollout import Rollout, Turn
from envhub.tasks import Task
from envhub.trainer import best
from envhub.trainer.config import resolve
from envhub.trainer.metrics import MetricsLog, forget_after, read_metrics
from envhub.trainer.plan import plan
from envhub.trainer.progress import Progress
from envhub.trainer.report import compared, curve, final_report, samples
from envhub.trainer.run import train
from envhub.trainer.text import chart

from .test_metrics import documented, numbers_of

OTHERS = '''
class Consonants(Letters):
    """Write anything but vowels."""
    rewards = (lambda text: 1 - share(text),)

class Turns(Letters):
    """Write vowels, several times."""

class Untested(Letters):
    """It has no held-out tasks."""
    tasks = LearntOnly("untested", lambda rng: Task("Write vowels."))
'''
LEARNT_ONLY = """
class LearntOnly(GeneratedTasks):
    splits = ("train",)
"""


@pytest.fixture
def source(tmp_path: Path, letters_source: str) -> Path:
    file = tmp_path / "several.py"
    imports, marker, rest = letters_source.partition("\ndef share")
    file.write_text(imports + LEARNT_ONLY + marker + rest + "    def oracle(self):\n        return 'aeiou'\n" + OTHERS)
    return file


def values(source: Path, *others: str, **more: Any) -> dict[str, Any]:
    names = [f"{source}:{name}" for name in ("Letters", *others)]
    return {"preset": "test", "env": names[0], "eval_env": names, "eval_tasks": 3, "tensorboard": False, **more}


def run(output: Path, given: dict[str, Any], resume: Path | None = None) -> str:
    said = Progress(Console(file=io.StringIO(), soft_wrap=True))
    asyncio.run(train(resolve({**given, "output": output}), resume=resume, progress=said))
    return said.console.file.getvalue()


def held_out(folder: Path) -> list[tuple[Any, ...]]:
    rows = read_metrics(folder)
    return [(row["step"], row["when"], row["env"], row["reward"]) for row in rows if row["kind"] == "eval"]


EXACT = {"engine_options": {"gather_seconds": 0.05}}


@pytest.mark.slow
def test_each_environment_is_evaluated_at_each_moment(tmp_path: Path, source: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    said = run(folder, values(source, "Consonants", warm_start=1, eval_every=1, tensorboard=True))
    moments = [(0, "before"), (0, "warm"), (1, "step"), (2, "after")]
    found = held_out(folder)
    assert [row[:3] for row in found] == [(*at, name) for at in moments for name in ("letters", "consonants")]
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        counts = Counter((step, r.environment) for step in (0, 1, 2) for r in store.iterate(phase="eval", step=step))
    assert counts == {(step, name): 6 if step == 0 else 3 for step in (0, 1, 2) for name in ("letters", "consonants")}
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    for name in ("letters", "consonants"):
        shown = [(event.step, event.value) for event in events.Scalars(f"eval/{name}/reward")]
        assert shown == [(step, pytest.approx(reward)) for step, _, env, reward in found if env == name]

    lines = said.splitlines()
    assert "mean reward of the training rollouts, steps 1 to 2:" in lines
    for name in ("letters", "consonants"):
        first, warm, _, last = (reward for _, _, env, reward in found if env == name)
        (line,) = (line for line in lines if line.startswith(f"held-out tasks of {name}, mean reward: "))
        assert f"before training {first:.3f} [" in line and f"after the warm start {warm:.3f} [" in line
        assert f"after training {last:.3f} [" in line and "; the intervals" in line
    assert sum(line.startswith("held-out task letters/eval/0/") for line in lines) == 4  # both have these tasks
    assert sum(line.startswith("  before: reward ") for line in lines) == 4
    both = {step: [row[3] for row in found if row[:1] == (step,) and row[1] != "before"] for step in (0, 1, 2)}
    expected = max(both, key=lambda step: sum(both[step]))
    assert f"after step {expected})" in lines[-1]
    assert best.values(read_metrics(folder), "reward")[1] == pytest.approx(sum(both[1]) / 2)


@pytest.mark.slow
def test_a_resumed_run_evaluates_only_what_was_not(tmp_path: Path, source: Path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    given = values(source, "Consonants", warm_start=1, save_every=1, **EXACT)
    run(whole, given)
    shutil.copytree(whole, stopped)
    file = stopped / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["env"] == "consonants"
    file.write_text("".join(lines[:-1]))
    said = run(stopped, given, resume=stopped)
    assert "evaluation on consonants after training" in said and "evaluation on letters after" not in said
    assert held_out(stopped) == held_out(whole)
    with (
        RolloutStore(stopped / "rollouts.sqlite", read_only=True) as found,
        RolloutStore(whole / "rollouts.sqlite", read_only=True) as expected,
    ):
        assert found.count("eval") == expected.count("eval") == 18


@pytest.mark.slow
def test_a_run_that_was_killed_in_the_evaluation_after_its_warm_start_keeps_no_rollout_twice(
    tmp_path: Path, source: Path
):
    folder = tmp_path / "run"
    run(folder, values(source, warm_start=1, steps=1, **EXACT))
    expected = held_out(folder)
    assert [when for _, when, _, _ in expected] == ["before", "warm", "after"]
    shutil.rmtree(folder / "checkpoints" / "step-000001")
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line).get("when") == "before"))
    run(folder, values(source, warm_start=1, steps=1, **EXACT), resume=folder)
    assert held_out(folder) == expected
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        assert sorted(item.task.index for item in store.iterate(phase="eval")) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.slow
def test_an_environment_that_is_not_trained_on_may_be_the_only_one(tmp_path: Path, source: Path):
    given = {**values(source, steps=1), "eval_env": [f"{source}:Consonants"]}
    said = run(tmp_path / "run", given)
    assert {row[2] for row in held_out(tmp_path / "run")} == {"consonants"}
    assert "evaluation before training: reward" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eval_env": ["several.py:Letters", "{}:Letters"]}, "eval_env names 'letters' twice"),
        ({"eval_env": "several.py:Letters"}, "eval_env: takes a list of values"),
        ({"eval_env": ["leters"]}, "no environment named 'leters'"),
        ({"eval_env": ["{}:Untested"]}, "eval"),
        ({"eval_env": ["{}:Consonants"], "eval_tasks": 0}, "eval_env says what to evaluate on, and eval_tasks 0"),
        ({"eval_split": "none"}, "no split 'none'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_starts(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
):
    monkeypatch.chdir(tmp_path)
    change = {k: [name.format(source) for name in v] if isinstance(v, list) else v for k, v in change.items()}
    with pytest.raises(UserError, match=said):
        plan(resolve({**values(source), **change}))


def test_another_environment_keeps_its_turns_and_has_as_many_tasks_as_there_are(source: Path):
    planned = plan(resolve(values(source, "Turns", max_turns=1, max_turn_tokens=7, eval_tasks=5)))
    trained, other = planned.held_out
    assert (trained.limits.max_turn_tokens, other.limits.max_turn_tokens) == (7, 7)
    assert trained.tasks == other.tasks == 5
    bank = plan(resolve({"preset": "test", "env": f"{source}:Letters", "eval_env": ["sandbox_code"], "max_turns": 9,
                         "eval_tasks": 100_000}))  # fmt: skip
    (held,) = bank.held_out
    assert held.limits.max_turns != 9 and 0 < held.tasks < 100_000 and held.config == {}


def test_another_environment_of_the_same_name_is_another(tmp_path: Path, source: Path):
    other = tmp_path / "other.py"
    other.write_text(
        "from envhub import EnvironmentConfig, Task, SingleTurnEnvironment, GeneratedTasks\n\n"
        "class Level(EnvironmentConfig):\n    level: int = 0\n\n"
        'class Letters(SingleTurnEnvironment):\n    """Another."""\n    Config = Level\n'
        "    tasks = GeneratedTasks('other', lambda rng: Task('Write.'))\n    rewards = (lambda text: 0.0,)\n"
    )
    configured = {**values(source), "env": f"{other}:Letters", "env_config": {"level": 3}}
    with pytest.raises(
        UserError, match="eval_env names two environments 'letters', .*other.py:Letters and .*several.py"
    ):
        plan(resolve({**configured, "eval_env": [f"{other}:Letters", f"{source}:Letters"]}))
    (held,) = plan(resolve(configured)).held_out
    assert (held.environment.target, held.config) == (f"{source}:Letters", {})
    (held,) = plan(resolve({**configured, "eval_env": [f"{other}:Letters"]})).held_out
    assert held.config == {"level": 3}


def test_the_flag_is_given_again_and_the_file_has_a_list(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
):
    names = [f"{source}:Letters", f"{source}:Consonants"]
    flags = ["train", "--env", names[0], "--preset", "test", "--dry-run"]
    assert command_line([*flags, "--eval-env", names[0], "--eval-env", names[1]]) == 0
    saved = tmp_path / "config.json"
    saved.write_text(capsys.readouterr().out)
    assert json.loads(saved.read_text())["eval_env"] == names
    assert command_line(["train", "--config", str(saved), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_env"] == names
    toml = tmp_path / "run.toml"
    toml.write_text(f"env = {json.dumps(names[0])}\npreset = 'test'\neval_env = {json.dumps(names)}\n")
    assert command_line(["train", "--config", str(toml), "--eval-env", names[1], "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_env"] == names[1:]
    toml.write_text(f"env = {json.dumps(names[0])}\npreset = 'test'\neval_env = 'letters'\n")
    assert command_line(["train", "--config", str(toml), "--dry-run"]) == 2
    assert "eval_env" in capsys.readouterr().err


def test_a_resume_keeps_the_rows_of_each_environment_and_moment(tmp_path: Path):
    log = MetricsLog(tmp_path, tensorboard=False)
    for when in ("before", "warm"):
        for name in ("a", "b", "b"):
            log.write(0, "eval", {"env": name, "when": when, "reward": 0.5, "passed": 0.0, "scored": 4})
    log.close()
    assert forget_after(tmp_path, 0) == "metrics.jsonl: rows dropped: 2 doubled"
    assert [(row["when"], row["env"]) for row in read_metrics(tmp_path)] == [
        ("before", "a"), ("before", "b"), ("warm", "a"), ("warm", "b"),
    ]  # fmt: skip


def row(when: str, mean: float, low: float | None, high: float | None, env: str = "e", step: int = 0) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "env": env, "when": when, "reward": mean, "reward_low": low,
            "reward_high": high, "passed": mean, "scored": 4}  # fmt: skip


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ((0.6, 0.5, 0.7), "; the intervals do not overlap: it is better"),
        ((0.1, 0.0, 0.19), "; the intervals do not overlap: it is worse"),
        (
            (0.45, 0.4, 0.5),
            "; the intervals overlap: no clear change (more --eval-tasks and --eval-samples narrow them)",
        ),
        ((0.6, None, None), ""),
    ],
)
def test_before_and_after_are_compared_by_their_intervals(after: tuple[float, ...], verdict: str):
    rows = [row("before", 0.3, 0.2, 0.4), row("before", 0.9, 0.8, 1.0, env="other"), row("after", *after, step=3)]
    (line,) = compared(rows, "e")
    shown = f"{after[0]:.3f}" + (f" [{after[1]:.3f}, {after[2]:.3f}]" if after[1] is not None else "")
    assert line == (
        f"held-out tasks of e, mean reward: before training 0.300 [0.200, 0.400], after training {shown}{verdict}"
    )


def test_what_a_run_has_not_is_left_out(tmp_path: Path):
    with RolloutStore(tmp_path / "r.sqlite") as store:
        assert final_report([], store, ["e"]) == []
        unscored = {**row("before", 0.0, None, None), "reward": None, "scored": 0}
        assert final_report([unscored], store, ["e"]) == []
    assert compared([row("before", 0.3, 0.2, 0.4)], "e") == [
        "held-out tasks of e, mean reward: before training 0.300 [0.200, 0.400]"
    ]
    assert compared([{**row("before", 0.3, 0.2, 0.4), "reward": None}], "e") == []
    steps = [{"kind": "train", "step": step, "reward": reward} for step, reward in ((1, 0.5), (2, None), (3, 0.5))]
    assert curve(steps[1:2]) == []
    assert curve(steps) == ["mean reward of the training rollouts, steps 1 to 3: 0.500 throughout"]


def test_samples_are_of_the_first_tasks_scored_both_times(tmp_path: Path, make_rollout: Any):
    def rollout(task: str, member: int, reward: float) -> Rollout:
        made: Rollout = make_rollout([([1], [2])], reward)
        made.task, made.member, made.environment = Task("q", id=task), member, "e"
        made.opening = Observation((Message("user", f"ask {task}"),))
        made.turns = [Turn(Action(f"say {reward}\x1b[2J"))]
        return made

    with RolloutStore(tmp_path / "r.sqlite") as store:
        store.add_all([rollout("c", 0, 0.1), rollout("b", 1, 0.2), rollout("b", 0, 0.3)], phase="eval", step=0)
        store.add_all([rollout("a", 0, 0.4), rollout("b", 0, 1.0), rollout("c", 0, 0.5)], phase="eval", step=2)
        lines = samples(store, "e", 2)
        assert samples(store, "e", 0) == samples(store, "other", 2) == []
    assert lines == [
        "held-out task b: ask b", "  before: reward 0.300, not passed: say 0.3·[2J", "  after: reward 1.000, passed: say 1.0·[2J",
        "held-out task c: ask c", "  before: reward 0.100, not passed: say 0.1·[2J", "  after: reward 0.500, not passed: say 0.5·[2J",
    ]  # fmt: skip


def test_a_curve_of_several_lines():
    assert chart([0.0, None, 1.0], height=2) == ["1.000 ┤      ███", "0.000 ┤▁▁▁   ███"]
    assert chart([0.5, 0.5]) == ["0.500 ┤▁▁▁▁▁▁"]
    assert chart([]) == chart([None, float("nan")]) == []
    assert chart([-1e308, 1e308], height=1) == ["-1e+308 ┤▁▁▁███"]
    assert len(chart([1e308] * 300 + [-1e308] * 300)) == 6
    drawn = chart(list(map(float, range(1000))), width=40, plain=True)
    assert len(drawn) == 6 and max(map(len, drawn)) <= 40 + len("999.000 |") and all(line.isascii() for line in drawn)


@pytest.mark.slow
def test_every_number_of_a_run_is_in_the_reference(tmp_path: Path, source: Path):
    of_all = {"algo": "ppo", "kl_coef": 0.01, "kl_target": 0.1, "steps": 1, "eval_every": 1, "save_every": 1}
    run(tmp_path / "run", values(source, **of_all))
    assert numbers_of(tmp_path / "run", "train", "eval") == documented("train", "eval")
