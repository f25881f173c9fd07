"""Slots: what all processes of a box take together is bounded, and no slot outlives its process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envhub.sandbox import TIERS, ProcessSandbox, RunOutcome, SandboxLimits, cgroups
from envhub.sandbox.collecting import collect

from .tiers import tier

HOG = """
import os, time
def f(children, megabytes):
    kids = []
    for _ in range(children):
        kids.append(os.fork())
        if not kids[-1]:
            held = bytearray(b"x") * (megabytes << 20)
            time.sleep(0.5)
            os._exit(0)
    return [os.waitpid(kid, 0)[1] for kid in kids]
"""
FILES = """
def f(megabytes):
    for number in range(megabytes):
        with open(str(number), "wb") as file:
            file.write(b"x" * (1 << 20))
    return megabytes
"""


@pytest_asyncio.fixture(params=TIERS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ProcessSandbox]:
    made = await tier(request.param, 4)
    assert isinstance(made, ProcessSandbox)
    if made.unbounded:
        await made.close()
        pytest.skip(made.unbounded)
    yield made
    await made.close()


def slots() -> set[Path]:
    """The folders of all slots of this process."""
    parents = {hierarchy.parent for hierarchy in cgroups.places()[0]}
    return {folder for parent in parents for folder in parent.glob(f"envhub-slot-*-{os.getpid()}-*")}


def present(folders: list[str]) -> list[str]:
    """Those of the folders that exist."""
    return [folder for folder in folders if Path(folder).exists()]


async def test_children_are_killed_that_take_more_than_all_may(sandbox: ProcessSandbox):
    limits = SandboxLimits(total_mb=128)
    roomy, tight = [(await sandbox.calls(HOG, "f", [[count, 40]], limits))[0] for count in (2, 6)]
    assert roomy.value == [0, 0]
    assert tight.outcome is RunOutcome.ok and signal.SIGKILL in tight.value


async def test_a_box_that_takes_more_than_it_may_says_so(sandbox: ProcessSandbox):
    limits = SandboxLimits(total_mb=64)
    source = "def f():\n    return len([bytearray(b'x') * (4 << 20) for _ in range(40)])"
    result = (await sandbox.calls(source, "f", [[]], limits))[0]
    assert (result.outcome, result.error) == (RunOutcome.memory, "all of its processes took more than 64 MB")
    assert (await sandbox.calls(source, "f", [[]], SandboxLimits(total_mb=256)))[0].value == 40
    assert (
        await sandbox.run_program("x = [bytearray(b'x') * (4 << 20) for _ in range(40)]", limits=limits)
    ).outcome is (RunOutcome.memory)


async def test_files_count_and_leave_nothing_to_the_next_box(sandbox: ProcessSandbox):
    limits = SandboxLimits(total_mb=64, disk_mb=60)
    for _ in range(5):
        assert (await sandbox.calls(FILES, "f", [[40]], limits))[0].value == 40


async def test_the_slots_are_gone_when_the_sandbox_is_closed(sandbox: ProcessSandbox):
    of_others = slots()
    other = await tier(sandbox.tier, 1)
    await other.calls(HOG, "f", [[1, 1]])
    assert slots() - of_others
    await other.close()
    assert not slots() - of_others


UNCLOSED = """
import asyncio, os
from envhub.sandbox import cgroups, default_sandbox

asyncio.run(default_sandbox().calls("def f(): return 1", "f", [[]]))
if not os.fork():
    raise SystemExit
os.wait()
parents = {hierarchy.parent for hierarchy in cgroups.places()[0]}
print(*[folder for parent in parents for folder in parent.glob(f"envhub-slot-*-{os.getpid()}-*")])
"""


async def test_a_process_that_closes_no_sandbox_leaves_no_slot(sandbox: ProcessSandbox):
    command = {"args": [sys.executable, "-c", UNCLOSED], "env": os.environ | {"ENVHUB_SANDBOX": sandbox.tier}}
    run = await asyncio.to_thread(subprocess.run, **command, capture_output=True, text=True, timeout=60, check=True)
    made = run.stdout.split()
    assert made
    assert not present(made)


async def test_two_sandboxes_of_a_process_do_not_share_slots(sandbox: ProcessSandbox):
    assert (await sandbox.calls(HOG, "f", [[1, 1]]))[0].value == [0]
    other = await tier(sandbox.tier, 1)
    assert (await other.calls(HOG, "f", [[1, 1]]))[0].value == [0]
    await other.close()
    assert (await sandbox.calls(HOG, "f", [[1, 1]]))[0].value == [0]


async def test_a_slot_that_somebody_removed_is_made_anew(sandbox: ProcessSandbox):
    assert (await sandbox.calls(HOG, "f", [[1, 1]]))[0].value == [0]
    for folder in slots():
        cgroups.remove(folder)
    assert (await sandbox.calls(HOG, "f", [[1, 1]]))[0].value == [0]
    tight = (await sandbox.calls(HOG, "f", [[6, 40]], SandboxLimits(total_mb=128)))[0]
    assert signal.SIGKILL in tight.value


KILLED = """
import asyncio, os, signal
from envhub.sandbox import make_sandbox

async def main():
    sandbox = make_sandbox({tier!r})
    running = asyncio.create_task(sandbox.calls("def f():\\n import time; time.sleep(60)", "f", [[]]))
    await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_what_a_killed_process_left_is_removed_by_the_next(sandbox: ProcessSandbox):
    script = KILLED.replace("{tier!r}", repr(sandbox.tier))
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await killed.wait() == -signal.SIGKILL
    left = [folder for folder in cgroups.abandoned() if f"-{killed.pid}-" in folder.name]
    assert left
    assert set(left) <= set(collect())
    assert not any(folder.exists() for folder in left)


@pytest.mark.parametrize("name", TIERS)
async def test_without_cgroups_a_tier_works_and_does_not_promise_that(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cgroups, "places", lambda: ((), "no cgroups"))
    bare = await tier(name, 1)
    assert isinstance(bare, ProcessSandbox)
    try:
        assert (await bare.calls(HOG, "f", [[6, 40]], SandboxLimits(total_mb=128)))[0].value == [0] * 6
        probe = next(probe for probe in await bare.self_test() if probe.name.startswith("memory limit of all"))
    finally:
        await bare.close()
    assert not probe.promised and "no cgroups" in probe.detail
