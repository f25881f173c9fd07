"""Trackers: what they get, at which step, and that nothing they do stops or slows a run."""

import asyncio
import importlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from envhub.cli.app import run as command_line
from envhub.errors import UserError
from envhub.trainer import tracking
from envhub.trainer.config import resolve
from envhub.trainer.metrics import MetricsLog
from envhub.trainer.progress import Progress
from envhub.trainer.run import train
from envhub.trainer.sft.config import resolve as resolve_sft
from envhub.trainer.sft.run import fine_tune

RECORDER = '''
"""A package in the place of wandb, which writes down what it is asked; FAILS names what raises."""
import json, os, pathlib, types

CALLS = pathlib.Path(__file__).with_name("calls.jsonl")

def note(call, **given):
    with CALLS.open("a") as file:
        file.write(json.dumps({"call": call, **given}) + "\\n")
    if call in os.environ.get("FAILS", ""):
        raise SystemExit("no\\nconnection") if call == "init" else ConnectionError("no\\nconnection")

class Run:
    offline, url = False, "https://example.org/run"
    def log(self, scalars, step):
        note("log", scalars=scalars, step=step)
    def finish(self, exit_code):
        note("finish", exit_code=exit_code)

def Settings(**given):
    return types.SimpleNamespace(**given)

def setup():
    return types.SimpleNamespace(settings=Settings(mode="online"))

def login(prompt, verify):
    return "login" not in os.environ.get("FAILS", "")

def init(settings, **given):
    note("init", **given)
    return Run()
'''


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the calls of a package that is imported as wandb."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(RECORDER)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "wandb"}
    for name in before:
        del sys.modules[name]
    yield tmp_path / "packages" / "calls.jsonl"
    sys.modules.pop("wandb", None)
    sys.modules.update(before)


def calls(file: Path, call: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row["call"] == call]


def console() -> Progress:
    return Progress(Console(file=io.StringIO(), soft_wrap=True))


def said(progress: Progress) -> list[str]:
    return progress.console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def track(
    folder: Path, name: str = "wandb", *, rows: int = 2, resumed: bool = False, project: str = "p", first: int = 0,
    error: Exception | None = None,
) -> list[str]:  # fmt: skip
    """Show a run of some rows that learns nothing; returns what was said."""
    folder.mkdir(exist_ok=True)
    progress = console()

    async def show() -> None:
        config = {"algo": "grpo", "env_config": {"level": 2}}
        async with tracking.tracked([name], project, folder, config, progress, resumed=resumed) as trackers:
            log = MetricsLog(folder, tensorboard=False, trackers=trackers)
            for step in range(first, first + rows):
                log.write(
                    step, "train", {"reward": step / 2, "passed": 1, "faults": {"engine": 1}, "gap": float("nan")}
                )
            log.close()
            if error is not None:
                raise error

    asyncio.run(show())
    return said(progress)


@pytest.mark.slow
def test_a_tracker_gets_the_configuration_and_what_tensorboard_gets_and_goes_on_with_its_run(
    tmp_path: Path, letters: str, recorder: Path
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values = {"preset": "test", "env": letters, "output": tmp_path / "run", "eval_tasks": 1, "track": ("wandb",)}
    for steps in (1, 2):
        config = resolve({**values, "steps": steps, "track_project": "vowels"})
        asyncio.run(train(config, resume=tmp_path / "run" if steps == 2 else None, progress=console()))
        assert calls(recorder, "init")[-1]["config"] == json.loads((tmp_path / "run/config.json").read_text())
    first, second = calls(recorder, "init")
    assert (first["project"], first["name"], first["resume"]) == ("vowels", "run", "allow")
    assert first["id"] == second["id"] == json.loads((tmp_path / "run" / tracking.FILE).read_text())["wandb"]["id"]
    assert [call["exit_code"] for call in calls(recorder, "finish")] == [0, 0]
    got = {(name, row["step"]): value for row in calls(recorder, "log") for name, value in row["scalars"].items()}
    board = EventAccumulator(str(tmp_path / "run/tensorboard"))
    board.Reload()
    shown = {(name, event.step): event.value for name in board.Tags()["scalars"] for event in board.Scalars(name)}
    assert got.keys() == shown.keys()
    assert got == pytest.approx(shown, rel=1e-5)  # an event holds float32
    assert {("train/reward", 1), ("train/reward", 2)} < got.keys()
    assert {name.partition("/")[0] for name, _ in got} == {"train", "eval"}


@pytest.mark.slow
def test_a_tracker_that_fails_in_a_run_is_one_warning_and_a_count(
    tmp_path: Path, letters: str, recorder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAILS", "log")
    progress = console()
    config = resolve(
        {"preset": "test", "env": letters, "output": tmp_path / "run", "eval_tasks": 0, "tensorboard": False,
         "track": ["wandb"]}
    )  # fmt: skip
    asyncio.run(train(config, progress=progress))
    assert (tmp_path / "run/checkpoints/step-000002").is_dir()
    assert [line for line in said(progress) if "the tracker" in line] == [
        "warning: the tracker wandb fails, training goes on: no connection",
        "warning: 2 of 2 rows of metrics did not reach the tracker wandb",
    ]
    assert len(calls(recorder, "log")) == 2  # it is tried again


@pytest.mark.slow
def test_a_supervised_run_is_shown_too(tmp_path: Path, recorder: Path):
    (tmp_path / "chat.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "It."}]}\n'
    )
    values = {"model": "tiny", "data": tmp_path / "chat.jsonl", "steps": 1, "tensorboard": False}
    config = resolve_sft({**values, "output": tmp_path / "run", "track": ["wandb"]})
    asyncio.run(fine_tune(config, progress=console()))
    (row,) = calls(recorder, "log")
    assert row["step"] == 1 and row["scalars"]["sft/nll"] > 0
    assert calls(recorder, "init")[0]["config"] == json.loads((tmp_path / "run/config.json").read_text())


def test_rows_are_numbers_by_kind_and_name(tmp_path: Path, recorder: Path):
    lines = track(tmp_path / "run")
    assert lines == ["tracker wandb: https://example.org/run"]
    assert [(row["step"], row["scalars"]) for row in calls(recorder, "log")] == [
        (0, {"train/reward": 0.0, "train/passed": 1.0}),
        (1, {"train/reward": 0.5, "train/passed": 1.0}),
    ]


def test_another_project_is_another_run_and_the_first_is_found_again(tmp_path: Path, recorder: Path):
    for project in ("p", "q", "q"):
        track(tmp_path / "run", project=project, resumed=True)
    ids = [call["id"] for call in calls(recorder, "init")]
    assert ids[0] != ids[1] == ids[2]


def test_a_run_that_fails_is_shown_as_failed(tmp_path: Path, recorder: Path):
    with pytest.raises(ValueError, match="lost"):
        track(tmp_path / "run", error=ValueError("lost"))
    assert [call["exit_code"] for call in calls(recorder, "finish")] == [1]
    assert len(calls(recorder, "log")) == 2


@pytest.mark.parametrize("fails", ["finish", "init"])
def test_a_tracker_that_fails_at_an_end_of_a_resumed_run_is_a_warning(
    tmp_path: Path, recorder: Path, monkeypatch: pytest.MonkeyPatch, fails: str
):
    monkeypatch.setenv("FAILS", fails)
    lines = track(tmp_path / "run", resumed=True)
    text = {
        "finish": "warning: the tracker wandb fails, training goes on: no connection",
        "init": "warning: the tracker wandb cannot show this run: no connection; leave it out to train without it",
    }
    assert [line for line in lines if "warning" in line] == [text[fails]]


def test_a_tracker_that_cannot_begin_is_the_users_error_in_a_new_run(
    tmp_path: Path, recorder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAILS", "init")
    with pytest.raises(UserError, match="the tracker wandb cannot show this run: no connection; leave it out"):
        track(tmp_path / "run")


def test_a_tracker_that_hangs_holds_nobody_up_and_what_it_did_not_take_is_counted(monkeypatch: pytest.MonkeyPatch):
    """Were a row waited for, this would never end."""
    monkeypatch.setattr(tracking, "_ROOM", 5)
    monkeypatch.setattr(tracking, "_CLOSING", 0.05)
    go, first, taken, lines = threading.Event(), threading.Event(), [], []

    def log(scalars: Any, step: int) -> None:
        first.set()
        go.wait()
        taken.append(step)

    shown = tracking.Shown("there", log, lambda failed: None)
    tracker = tracking.Tracker("slow", lambda: shown, lines.append)

    async def write() -> None:
        await tracker.start()
        tracker.write(0, {"a": 0.0})
        first.wait()
        for step in range(1, 20):
            tracker.write(step, {"a": 0.0})
        assert lines == []
        await tracker.close(failed=False)

    asyncio.run(write())
    assert lines == [
        "warning: the tracker slow fails, training goes on: it did not take the last rows in 0.05 s",
        "warning: 20 of 20 rows of metrics did not reach the tracker slow",
    ]
    go.set()
    tracker._thread.join()
    assert taken == [0, 1, 2, 3, 4, 5]  # what was waiting, and no more


def test_a_tracker_that_does_not_answer_at_the_start_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracking, "_STARTING", 0.05)
    go = threading.Event()
    tracker = tracking.Tracker("slow", lambda: go.wait() and tracking.Shown("", print, print), print)
    with pytest.raises(
        UserError, match=r"the tracker slow cannot show this run: it did not answer in 0\.05 s; leave it"
    ):
        asyncio.run(tracker.start())
    go.set()


def test_an_error_whose_text_fails_is_a_warning_too():
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def log(scalars: Any, step: int) -> None:
        raise Silent

    lines: list[str] = []
    tracker = tracking.Tracker("odd", lambda: tracking.Shown("there", log, lambda failed: None), lines.append)

    async def write() -> None:
        await tracker.start()
        tracker.write(0, {})
        await tracker.close(failed=False)

    asyncio.run(write())
    assert lines == [
        "warning: the tracker odd fails, training goes on: <Silent: its text fails with ValueError>",
        "warning: 1 of 1 rows of metrics did not reach the tracker odd",
    ]


@pytest.mark.parametrize("hangs", ["start", "close"])
def test_a_run_that_is_stopped_does_not_wait_for_a_tracker_that_hangs(hangs: str):
    """Were a thread of the loop's waiting for it, the loop would not end before `go` is set."""
    go, reached = threading.Event(), threading.Event()

    def hang(*given: object) -> None:
        reached.set()
        go.wait()

    shown = tracking.Shown("there", hang, hang)
    tracker = tracking.Tracker("slow", lambda: hang() if hangs == "start" else shown, print)  # type: ignore[arg-type,return-value]

    async def use() -> None:
        await tracker.start()
        await tracker.close(failed=False)

    async def stop() -> None:
        job = asyncio.create_task(use())
        while not reached.is_set():
            await asyncio.sleep(0.01)
        job.cancel()
        await asyncio.wait([job])
        assert job.cancelled()

    asyncio.run(stop())
    assert tracker._thread.is_alive()
    go.set()
    tracker._thread.join()


def test_a_package_that_is_missing_is_said_before_anything_starts(
    tmp_path: Path, letters: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    flags = ["train", "--preset", "test", "--env", letters, "--output", str(tmp_path / "run"), "--track", "trackio"]
    for more in ([], ["--dry-run"]):
        assert command_line([*flags, *more]) == 2
        error = capsys.readouterr().err.strip()
        assert error.endswith(
            "--track trackio needs an optional dependency; install it with: pip install 'envhub[tracking]'"
        )
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_is_none_is_refused_by_name(letters: str, capsys: pytest.CaptureFixture[str]):
    assert command_line(["train", "--env", letters, "--preset", "test", "--track", "wanbd"]) == 2
    error = capsys.readouterr().err
    assert "track" in error and "wanbd" in error and "'wandb' or 'trackio'" in error


@pytest.mark.parametrize("text", ["{", "[]", '{"wandb": {"project": "p"}}', '{"wandb": {"project": "p", "id": 3}}'])
def test_a_damaged_file_of_places_is_named_and_left_alone(tmp_path: Path, recorder: Path, text: str):
    (tmp_path / tracking.FILE).write_text(text)
    with pytest.raises(UserError, match=r"trackers\.json is damaged: "):
        track(tmp_path, resumed=True)
    assert (tmp_path / tracking.FILE).read_text() == text and not recorder.exists()


def records(file: Path) -> list[Any]:
    """The records of a .wandb file: 7 bytes, then blocks of 32 KiB of pieces, each with a checksum, a length and a kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, piece, out = file.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        piece += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            out.append(Record.FromString(piece))
            piece = b""
    return out


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package itself, which finds no settings of the user's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    module = pytest.importorskip("wandb")
    module.teardown()  # it reads the environment once
    yield module
    module.teardown()


def test_wandb_writes_a_run_offline_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: Any):
    monkeypatch.setenv("WANDB_MODE", "offline")
    lines = track(tmp_path / "run", project="vowels")
    track(tmp_path / "run", project="vowels", resumed=True, first=2)
    assert lines == [f"tracker wandb: {tmp_path}/run/wandb/{lines[0].rpartition('/wandb/')[2]}"]
    found = [records(file) for file in sorted((tmp_path / "run/wandb").glob("offline-run-*/run-*.wandb"))]
    runs = [next(record.run for record in half if record.WhichOneof("record_type") == "run") for half in found]
    assert len(runs) == 2 and runs[0].run_id == runs[1].run_id
    assert (runs[0].project, runs[0].display_name) == ("vowels", "run")
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["algo"] == "grpo" and config["env_config"] == {"level": 2}
    rows = [record.history for half in found for record in half if record.WhichOneof("record_type") == "history"]
    got = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in rows]
    assert [(row["_step"], row["train/reward"]) for row in got] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]


def test_wandb_without_a_key_says_how_to_get_one(tmp_path: Path, wandb: Any):
    with pytest.raises(
        UserError, match="the tracker wandb cannot show this run: it has no key: run `wandb login`, or set"
    ):
        track(tmp_path / "run")


def test_trackio_keeps_a_run_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    trackio = pytest.importorskip("trackio")
    track(tmp_path / "run", "trackio")
    track(tmp_path / "run", "trackio", resumed=True, first=2)
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    (run,) = trackio.Api().runs("p")
    assert run.config["algo"] == "grpo" and run.name.startswith("run-")
    rows = storage.get_logs("p", run.name)
    assert [(row["step"], row["train/reward"]) for row in rows] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]
    assert os.listdir(tmp_path / "kept")
