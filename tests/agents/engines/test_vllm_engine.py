import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from envhub.agents.engines import Engine, Request, WeightUpdate, make_engine
from envhub.errors import ConfigError, EngineFault, UserError

from .engine_contract import FREE, EngineContract, Reference, begun, until

pytest.importorskip("vllm")
psutil = pytest.importorskip("psutil")  # comes with vLLM

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

OPTIONS = {"dtype": "float32", "max_batch": 32, "kv_cache_gib": 0.25}
OPENS_AN_ENGINE = """
import asyncio, sys
from envhub.agents.engines import make_engine

async def main():
    engine = make_engine("vllm", sys.argv[1], options={"dtype": "float32", "kv_cache_gib": 0.25, "max_context": 256})
    await engine.start()
    print("open", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield Reference()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(reference: Reference) -> AsyncIterator[Engine]:
    made = make_engine("vllm", str(reference.folder), options=OPTIONS)
    await made.start()
    yield made
    await made.close()


class TestVllmEngine(EngineContract):
    pass


async def test_a_wrong_folder_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match=str(folder)):
            await make_engine("vllm", str(folder)).start()


async def test_an_unknown_option_comes_with_a_suggestion(reference: Reference) -> None:
    with pytest.raises(ConfigError, match=r"max_batches.*did you mean 'max_batch'"):
        make_engine("vllm", "anywhere", options={"max_batches": 4})
    with pytest.raises(UserError, match="no_such_argument"):
        await make_engine("vllm", str(reference.folder), options={"extra": {"no_such_argument": 1}}).start()


@pytest.mark.parametrize("moment", ["while it starts", "when it runs"])
async def test_the_engine_process_ends_with_a_killed_parent(reference: Reference, tmp_path: Path, moment: str) -> None:
    script = tmp_path / "opens.py"
    script.write_text(OPENS_AN_ENGINE)
    command = [sys.executable, str(script), str(reference.folder)]
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        watched = psutil.Process(parent.pid)
        if moment == "when it runs":
            assert parent.stdout is not None
            assert await parent.stdout.readline() == b"open\n"
        else:
            await asyncio.to_thread(_wait_for_engine, watched)
        children = watched.children(recursive=True)
        assert children
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        await parent.wait()
    await until(lambda: not any(_lives(child) for child in children))


def _wait_for_engine(parent: "psutil.Process") -> None:
    while not any(_is_engine(child) for child in parent.children(recursive=True)):
        assert parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE


def _is_engine(process: "psutil.Process") -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # one of those that ask the machine what it is, gone meanwhile
        return False


def _lives(process: "psutil.Process") -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_closing_ends_what_waits_and_can_be_repeated(engine: Engine) -> None:
    """The last of this file: it closes the engine that all others share."""
    running = await begun(engine, Request("running", [5, 6], 4000, FREE))
    children = psutil.Process().children(recursive=True)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineFault, match="closed"):
        await running
    assert engine.stats().running == 0
    with pytest.raises(EngineFault):
        await engine.generate(Request("late", [5], 4, FREE))
    with pytest.raises(EngineFault):
        await engine.update_weights(WeightUpdate(1, {}))
    await until(lambda: not any(_lives(child) and _is_engine(child) for child in children))
