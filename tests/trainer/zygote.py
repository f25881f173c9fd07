"""A process that has imported what training needs and run none of it, so that a run to be killed starts in no time.

Run as a script it reads orders from its standard input, one JSON object a line, and answers each with a line:
`{"config": …, "resume": …, "log": …}` forks a process that trains and answers its id, `{"wait": id}` waits for it and
answers how it ended (the exit code, or minus the signal). A fork inherits no thread, because torch has run nothing.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Zygote:
    """Forks runs. Close it at the end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def train(self, config: dict[str, Any], *, resume: Path | None, log: Path, **more: Any) -> int:
        """Begin a run and return its process."""
        return self._ask({"config": config, "resume": resume and str(resume), "log": str(log), **more})

    def wait(self, process: int) -> int:
        """Wait for the end of a run: its exit code, or minus the signal that ended it."""
        return self._ask({"wait": process})

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _preload() -> None:
    import matplotlib.backends.backend_agg  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, get_scheduler  # noqa: F401

    import envhub.agents.engines.transformers_engine
    import envhub.trainer.run  # noqa: F401


def _train(order: dict[str, Any]) -> None:
    from envhub.cli.app import _end_cleanly_on_sigterm  # noqa: F401
    from envhub.errors import UserError
    from envhub.trainer.config import resolve
    from envhub.trainer.run import train

    resume = order["resume"]
    try:
        asyncio.run(train(resolve(order["config"]), resume=resume and Path(resume)))
    except UserError as problem:
        print(f"envhub: {problem}", flush=True)
        os._exit(2)


def _fork(order: dict[str, Any]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _train(order)
        code = 0
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
            _, status = os.waitpid(order["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = _fork(order)
        print(answer, flush=True)


if __name__ == "__main__":
    _main()
