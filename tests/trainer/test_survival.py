"""Nothing is lost: runs that are killed, interrupted, or out of room, and what can be gone on with afterwards."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from envhub.agents.engines import checkpoints
from envhub.agents.models import resolve_model
from envhub.ledger import Ledger
from envhub.records import RolloutStore, RunFolder
from envhub.trainer import checkpoint
from envhub.trainer.metrics import read_metrics

from .zygote import NO_DISK, Zygote

pytestmark = pytest.mark.slow

TROUBLED = '''
import pathlib, time

class Held(Letters):
    """Its tasks from the third one on do not end; they run in processes of their own."""
    isolation = "process"
    def step(self, action):
        if self.task.index >= 2 and self.task.split == "train":
            pathlib.Path(__file__).with_name("mark").touch()
            time.sleep(60)
        return super().step(action)

class Filling(Letters):
    """From the third task on there is no room on the disk."""
    async def step(self, action):
        if self.task.index >= 2:
            with pathlib.Path(__file__).with_name("disk").joinpath("filler").open("wb", buffering=0) as filler:
                try:
                    for size in (1_000_000, 1000):
                        while filler.write(b"x" * size) == size:
                            pass
                except OSError:
                    pass
        return await super().step(action)
'''


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    resolve_model("tiny")  # made before anything is killed
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def settings(tmp_path: Path, letters_source: str) -> dict[str, Any]:
    """Those of a run of two steps in `tmp_path / "run"`, saved after each."""
    (tmp_path / "letters.py").write_text(letters_source + TROUBLED)
    return {
        "preset": "test", "env": f"{tmp_path}/letters.py:Letters", "output": str(tmp_path / "run"), "tensorboard": False,
        "save_every": 1, "eval_tasks": 0, "max_turn_tokens": 8,
    }  # fmt: skip


def until(condition: Callable[[], object], log: Path) -> None:
    """Wait for a condition."""
    last = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < last, log.read_text()
        time.sleep(0.02)


def examine(folder: Path, at_least: int) -> int:
    """Look at what a killed run left; returns the newest checkpoint's step, 0 for none."""
    found = checkpoint.finished(folder / "checkpoints")
    for item in found:
        assert item.check().counts().in_flight == 0
        item.source()
        torch.load(item.path / "trainer.pt", weights_only=True)
    newest = found[-1].step if found else 0
    rows = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    for row in rows:
        if row["kind"] == "train":
            Ledger.from_dict(row["ledger"]).check()
    recorded = max([row["step"] for row in rows], default=0)
    assert newest >= max(recorded - 1, at_least), "a step is lost that was not in flight"
    best = folder / "checkpoints" / "best"
    assert not best.is_symlink() or checkpoints.best(best.parent) is not None
    if found:
        with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
            store.check()
            assert all(len(list(store.iterate(phase="train", step=step))) == 8 for step in range(1, recorded + 1))
    if (folder / "checkpoints").exists():
        assert len(list((folder / "checkpoints").glob(".*"))) <= 2, "leftovers pile up"
    if (folder / "config.json").exists():
        RunFolder.open(folder, resume=True).close()
    return newest


def test_a_run_killed_at_any_moment_loses_at_most_the_step_in_flight(
    zygote: Zygote, settings: dict[str, Any], tmp_path: Path
):
    log, folder, rng = tmp_path / "log", tmp_path / "run", random.Random(5)
    settings |= {"eval_tasks": 1, "eval_every": 2, "keep": 1}
    for name in ("cold", "warm"):  # what is read from the disk for the first time takes longer
        begun = time.monotonic()
        assert zygote.run("train", log, config={**settings, "output": str(tmp_path / name)}) == 0, log.read_text()
        seconds = time.monotonic() - begun
    steps, newest, killed = 2, 0, 0
    while killed < 20:
        resume = folder if (folder / "config.json").exists() else None
        process = zygote.start("train", log, config={**settings, "steps": steps}, resume=resume)
        time.sleep(rng.uniform(0, seconds))
        os.kill(process, signal.SIGKILL)
        ended = zygote.wait(process)
        assert ended in (0, -signal.SIGKILL), log.read_text()
        killed += ended != 0
        seconds *= 0.8 if ended == 0 else 1.0  # the machine has become faster: more moments are to hit
        if folder.exists():
            newest = examine(folder, newest)
        steps = max(steps, newest + 2)
    assert zygote.run("train", log, config={**settings, "steps": newest + 1}, resume=folder) == 0, log.read_text()
    assert examine(folder, newest) == newest + 1
    assert {path.name for path in folder.glob(".*")} == {".lock"}
    assert not list((folder / "checkpoints").glob(".*"))


def test_a_save_killed_at_any_operation_leaves_whole_checkpoints_only(zygote: Zygote, tmp_path: Path):
    folder, log, moments = tmp_path / "checkpoints", tmp_path / "log", 0
    assert zygote.run("save", log, folder=folder, step=1, keep=1) == 0, log.read_text()
    for step in range(2, 200):
        moments += 1
        ended = zygote.run("save", log, folder=folder, step=step, keep=1, die_at=moments)
        found = checkpoint.finished(folder)
        assert all(item.check().step == item.step for item in found)
        named = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        assert named - {"best"} == {item.path.name for item in found}, f"half of one is left at moment {moments}"
        assert found[-1].step >= step - 1 and checkpoints.best(folder) in [item.path for item in found]
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, log.read_text()
        if found[-1].step < step:  # the save was not done: do it now, as a run that goes on would
            assert zygote.run("save", log, folder=folder, step=step, keep=1) == 0, log.read_text()
    assert ended == 0 and moments > 20
    assert sorted(path.name for path in folder.iterdir()) == ["best", f"step-{step:06d}"]


@pytest.mark.parametrize(
    ("size", "file"), [(13_500_000, "step-000002"), (19_000_000, "step-000002"), (5_000_000, "step-000001")]
)
def test_a_full_disk_stops_the_run_with_the_last_checkpoint_whole(
    zygote: Zygote, settings: dict[str, Any], tmp_path: Path, size: int, file: str
):
    log, disk = tmp_path / "log", tmp_path / "disk"
    disk.mkdir()
    config = {**settings, "output": str(disk / "run"), "steps": 2}
    ended = zygote.run("train_on_a_small_disk", log, disk=disk, size=size, config=config)
    if ended == NO_DISK:
        pytest.skip("this machine does not let a process mount a disk of its own")
    said = log.read_text()
    assert ended == 0, said
    line = next(line for line in said.splitlines() if line.startswith("envhub: "))
    assert line.startswith(f"envhub: cannot write the checkpoint {disk}/run/checkpoints/{file}: ")
    assert "No space left on device" in line and line.endswith("earlier checkpoints are whole")
    assert "Traceback" not in said
    whole = "[1]" if file == "step-000002" else "[]"
    assert f"whole: {whole}\nleft over: []\n" in said and "went on: [1, 2]" in said


def test_a_full_disk_stops_a_run_where_it_writes_its_rollouts(zygote: Zygote, settings: dict[str, Any], tmp_path: Path):
    log, disk = tmp_path / "log", tmp_path / "disk"
    disk.mkdir()
    config = {
        **settings,
        "env": settings["env"].replace(":Letters", ":Filling"),
        "output": str(disk / "run"),
        "steps": 2,
    }
    ended = zygote.run("train_on_a_small_disk", log, disk=disk, size=30_000_000, config=config)
    if ended == NO_DISK:
        pytest.skip("this machine does not let a process mount a disk of its own")
    said = log.read_text()
    assert f"envhub: cannot write {disk}/run/rollouts.sqlite: No space left on device (" in said
    assert f"step 1 is saved; go on with: envhub train --resume {disk}/run\n" in said and "whole: [1]" in said


def test_every_file_that_cannot_be_written_is_named(zygote: Zygote, tmp_path: Path):
    log, disk = tmp_path / "log", tmp_path / "disk"
    disk.mkdir()
    ended = zygote.run("write_on_a_full_disk", log, disk=disk)
    if ended == NO_DISK:
        pytest.skip("this machine does not let a process mount a disk of its own")
    said = log.read_text()
    assert ended == 0 and "Traceback" not in said, said
    lines = dict(line.split(": ", 1) for line in said.splitlines())
    places = {
        "config": "run/config.json", "metrics": "run/metrics.jsonl", "tensorboard": "board/tensorboard",
        "rollouts": "run/rollouts.sqlite", "curve": "run/curve.png", "log": "new",
    }  # fmt: skip
    for name, place in places.items():
        assert f"{disk}/{place}" in lines[name] and "No space left on device" in lines[name], said
    assert lines["as before"] == "True"


def test_a_file_that_may_not_grow_is_as_a_full_disk(zygote: Zygote, settings: dict[str, Any], tmp_path: Path):
    log = tmp_path / "log"
    assert zygote.run("train", log, config={**settings, "steps": 1}) == 0, log.read_text()
    for largest in (1_000_000, 5_000_000):  # in the weights, and in the optimizer's state
        ended = zygote.run("train", log, config={**settings, "steps": 2}, resume=tmp_path / "run", largest_file=largest)
        line = log.read_text().splitlines()[-1]
        assert ended == 2 and line.startswith(
            f"envhub: cannot write the checkpoint {tmp_path}/run/checkpoints/step-000002: "
        )
        assert line.endswith("earlier checkpoints are whole")
        assert examine(tmp_path / "run", 1) == 1
        assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def command(settings: dict[str, Any], **more: Any) -> list[str]:
    flags = {**settings, **more}
    boolean = {"tensorboard": "--no-tensorboard"}
    pairs = [[f"--{name.replace('_', '-')}", str(value)] for name, value in flags.items() if name not in boolean]
    return ["train", *[item for pair in pairs for item in pair], *boolean.values()]


def test_ctrl_c_in_the_rollouts_ends_their_processes_and_saves_the_finished_steps(
    zygote: Zygote, settings: dict[str, Any], tmp_path: Path
):
    log, mark = tmp_path / "log", tmp_path / "mark"
    held = command(settings, env=settings["env"].replace(":Letters", ":Held"), save_every=0, steps=3)
    process = zygote.start("command", log, arguments=held)
    until(mark.exists, log)
    children = descendants(process)
    assert children
    os.killpg(process, signal.SIGINT)
    assert zygote.wait(process) == 130, log.read_text()
    until(lambda: not [child for child in children if Path(f"/proc/{child}").exists()], log)
    said = log.read_text()
    assert f"step 1 is saved; go on with: envhub train --resume {tmp_path}/run\n" in said
    assert said.splitlines()[-1] == "envhub: interrupted" and "Traceback" not in said
    assert examine(tmp_path / "run", 1) == 1


def test_ctrl_c_in_an_update_lets_it_end_and_saves_its_step(zygote: Zygote, settings: dict[str, Any], tmp_path: Path):
    log, hold = tmp_path / "log", tmp_path / "hold"
    process = zygote.start("command", log, arguments=command(settings, save_every=0, steps=3), hold=hold)
    until(hold.exists, log)
    os.killpg(process, signal.SIGINT)
    until(lambda: "Ctrl-C again ends at once" in log.read_text(), log)
    Path(f"{hold}.go").touch()
    assert zygote.wait(process) == 130, log.read_text()
    assert f"step 1 is saved; go on with: envhub train --resume {tmp_path}/run\n" in log.read_text()
    assert examine(tmp_path / "run", 1) == 1
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1]


def test_a_second_ctrl_c_ends_at_once(zygote: Zygote, settings: dict[str, Any], tmp_path: Path):
    log, hold = tmp_path / "log", tmp_path / "hold"
    process = zygote.start("command", log, arguments=command(settings, steps=3), hold=hold)
    until(hold.exists, log)
    os.killpg(process, signal.SIGINT)
    until(lambda: "Ctrl-C again ends at once" in log.read_text(), log)
    os.killpg(process, signal.SIGINT)
    assert zygote.wait(process) == 130
    assert not Path(f"{hold}.ended").exists(), "it has waited for the update"
    assert log.read_text().splitlines()[-1] == "envhub: interrupted"
    assert zygote.run("train", log, config={**settings, "steps": 1}, resume=tmp_path / "run") == 0, log.read_text()


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # ended meanwhile
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [process]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found
