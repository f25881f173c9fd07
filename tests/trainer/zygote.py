"""A process that has imported what training needs and run none of it, so that a run to be killed starts in no time.

Run as a script it reads orders from its standard input, one JSON object a line, and answers each with a line:
`{"call": name, "log": file, …}` forks a process that calls that function of this module, what it says going to the file,
and answers its id; `{"wait": id}` waits for it and answers how it ended (the exit code, or minus the signal). A fork
inherits no thread, because torch has run nothing.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NO_DISK = 77
"""The exit code where this machine does not let a process mount a small disk for itself."""


class Zygote:
    """Forks processes. Close it at the end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order, default=str) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, call: str, log: Path, **order: Any) -> int:
        """Begin to call a function and return its process."""
        return self._ask({"call": call, "log": log, **order})

    def wait(self, process: int) -> int:
        """Wait for the end of a process: its exit code, or minus the signal that ended it."""
        return self._ask({"wait": process})

    def run(self, call: str, log: Path, **order: Any) -> int:
        """Call a function to its end."""
        return self.wait(self.start(call, log, **order))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _preload() -> None:
    import matplotlib.backends.backend_agg
    import torch.utils.tensorboard
    import transformers.models.llama.modeling_llama
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, get_scheduler

    import envhub.agents.engines.transformers_engine
    import envhub.cli.commands.train
    import envhub.trainer.run

    del (
        AutoModelForCausalLM,
        AutoTokenizer,
        PreTrainedTokenizerFast,
        get_scheduler,
        matplotlib,
        torch,
        transformers,
        envhub,
    )


def train(config: dict[str, Any], resume: str | None = None, largest_file: int = 0) -> None:
    """Train. A user's error is said in a line."""
    from envhub.errors import UserError
    from envhub.trainer.config import resolve
    from envhub.trainer.run import train

    if largest_file:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    try:
        asyncio.run(train(resolve(config), resume=Path(resume) if resume else None))
    except UserError as problem:
        print(f"envhub: {problem}", flush=True)
        sys.exit(2)


def command(arguments: list[str], hold: str = "") -> None:
    """The command line, in a session of its own. With `hold`, an update marks that file and waits for `hold`.go; `hold`.ended then."""
    from envhub.cli.app import run
    from envhub.trainer.strategy import TorchStrategy

    os.setsid()
    plain = TorchStrategy.step

    def held(self: Any, *given: Any) -> Any:
        Path(hold).touch()
        until = time.monotonic() + 60
        while not Path(f"{hold}.go").exists() and time.monotonic() < until:
            time.sleep(0.02)
        Path(f"{hold}.ended").touch()
        return plain(self, *given)

    if hold:
        TorchStrategy.step = held  # type: ignore[method-assign]
    code = run(arguments)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of an interpreter does
    sys.exit(code)


class _Model:
    """What a checkpoint asks of a strategy and of a tokenizer, without a model."""

    def save_model(self, folder: Path) -> None:
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text("x" * 100)

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")

    def state(self) -> dict[str, Any]:
        return {"stepper": [1, 2, 3]}

    def trained(self) -> str:
        return "none"


def save(folder: str, step: int, keep: int, die_at: int = 0) -> None:
    """Save a checkpoint, and let the link `best` lead to it; killed at the `die_at`-th operation on a file of the folder."""
    from envhub.ledger import Ledger
    from envhub.trainer import checkpoint

    operations = 0

    def count(event: str, given: tuple[Any, ...]) -> None:
        nonlocal operations
        if (event == "open" or event.startswith("os.")) and given and str(given[0]).startswith(folder):
            operations += 1
            if operations == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    place = checkpoint.Place(position=step, seed=0)
    meta = checkpoint.Meta(step=step, sampler=place, ledger=Ledger().to_dict(), version=step)
    model: Any = _Model()
    saved = checkpoint.save(Path(folder), model, model, meta, keep)
    checkpoint.point_to_best(saved)
    checkpoint.rotate(Path(folder), keep)


def small_disk(folder: str, size: int) -> Callable[[int], None]:
    """Mount a disk of `size` bytes that only this process sees; returns what gives it another size."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group, new_user, new_mounts, private, again = os.getuid(), os.getgid(), 0x10000000, 0x20000, 0x44000, 0x20
    if libc.unshare(new_mounts) and libc.unshare(new_user | new_mounts):
        sys.exit(NO_DISK)
    if os.getuid() != user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)

    def mount(flags: int, kind: bytes | None, place: str, options: str) -> None:
        if libc.mount(b"none", place.encode(), kind, flags, options.encode()):
            sys.exit(NO_DISK)

    mount(private, None, "/", "")
    mount(0, b"tmpfs", folder, f"size={size}")
    return lambda other: mount(again, b"tmpfs", folder, f"size={other}")


def train_on_a_small_disk(disk: str, size: int, config: dict[str, Any]) -> None:
    """Train until the disk is full, say what is left, make room, and go on."""
    from envhub.errors import UserError
    from envhub.trainer import checkpoint
    from envhub.trainer.config import resolve
    from envhub.trainer.run import train

    resize = small_disk(disk, size)
    output = Path(config["output"])
    try:
        asyncio.run(train(resolve(config)))
    except UserError as problem:
        print(f"envhub: {problem}", flush=True)
    resize(100_000_000)
    (Path(disk) / "filler").unlink(missing_ok=True)
    print("whole:", [item.check().step for item in checkpoint.finished(output / "checkpoints")], flush=True)
    print("left over:", [path.name for path in (output / "checkpoints").glob(".*")], flush=True)
    asyncio.run(train(resolve(config), resume=output))
    print("went on:", [item.check().step for item in checkpoint.finished(output / "checkpoints")], flush=True)


def write_on_a_full_disk(disk: str) -> None:
    """Write each kind of file of a run where there is no room, and say what is said about it."""
    from envhub.errors import UserError
    from envhub.records import RolloutStore, RunFolder
    from envhub.trainer.metrics import MetricsLog
    from envhub.trainer.plotting import plot

    small_disk(disk, 1_000_000)
    root = Path(disk)
    row = {"reward": 0.5, "passed": 0.5, "scored": 4, "text": "x" * 100_000}
    with RunFolder.open(root / "run") as folder, RolloutStore(root / "run" / "rollouts.sqlite") as store:
        (root / "board").mkdir()
        (root / "board" / "metrics.jsonl").symlink_to("/dev/null")  # so that only the event file has no room
        plain, board = MetricsLog(root / "run", tensorboard=False), MetricsLog(root / "board", tensorboard=True)
        plain.write(1, "train", row)
        with (root / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 1000)
        before = (root / "run" / "metrics.jsonl").read_bytes()
        writers = {
            "config": lambda: folder.write_config({"text": "x" * 10_000}),
            "metrics": lambda: plain.write(2, "train", row),
            "tensorboard": lambda: [board.write(step, "train", {"a": 0.5}) for step in range(1000)],
            "rollouts": lambda: store.add(_rollout(), phase="train"),
            "curve": lambda: plot({"a": [{"step": 1, "kind": "train", **row}]}, root / "run" / "curve.png"),
            "log": lambda: MetricsLog(root / "new", tensorboard=True).close(),
        }
        for name, write in writers.items():
            try:
                write()
                print(f"{name}: written", flush=True)
            except UserError as problem:
                print(f"{name}: {problem}", flush=True)
        plain.close()
        board.close()
        print("as before:", (root / "run" / "metrics.jsonl").read_bytes() == before, flush=True)


def _rollout() -> Any:
    from envhub.limits import Limits
    from envhub.outcome import Outcome
    from envhub.rollout import Rollout
    from envhub.tasks import Task

    return Rollout("e", Task("q" * 100_000), Limits(), Outcome.FINISHED, 0.5, group="a")


def _fork(call: str, log: str, **order: Any) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        globals()[call](**order)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main() -> None:
    _preload()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = _fork(**order)
        print(answer, flush=True)


if __name__ == "__main__":
    _main()
