"""Many submissions at once and many in a row: each result is its own, nothing is left, and faults of the machine are faults."""

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envhub.errors import EnvironmentFault
from envhub.sandbox import TIERS, CallResult, ProcessSandbox, RunOutcome, SandboxLimits, grade_function

from .tiers import tier

LIMITS = SandboxLimits(wall_seconds=60.0, cpu_seconds=20)
QUICK = SandboxLimits(wall_seconds=1.0, cpu_seconds=1)


@pytest_asyncio.fixture(params=TIERS)
async def two(request: pytest.FixtureRequest) -> AsyncIterator[ProcessSandbox]:
    """A sandbox with two workers."""
    made = await tier(request.param, 2)
    assert isinstance(made, ProcessSandbox)
    yield made
    await made.close()


HOSTILE = {
    5: "import os\nos._exit(0)", 17: "while True: pass", 29: "import os\nos.kill(os.getppid(), 9)\ndef f(x): return 29",
    41: "def f(x): print('x' * 5_000_000); return x", 53: "def f(x): raise ValueError(x)",
}  # fmt: skip
OWN = """
import os, time
started = time.monotonic()
open("mark", "x").write("{number}")
def f(x): return [x, {number}, open("mark").read(), started]
"""


async def test_64_submissions_on_two_workers_get_each_their_own_result_in_turn(two: ProcessSandbox) -> None:
    async def called(number: int) -> list[CallResult]:
        source, limits = HOSTILE.get(number, OWN.format(number=number)), QUICK if number in HOSTILE else LIMITS
        return await two.calls(source, "f", [[k] for k in range(3)], limits)

    found = await asyncio.gather(*(called(number) for number in range(64)))
    starts = {}
    for number, results in enumerate(found):
        values = [result.value for result in results if result.outcome is RunOutcome.ok]
        if number in HOSTILE:
            assert values in ([], [29, 29, 29]), (number, results)
            continue
        assert [value[:3] for value in values] == [[k, number, str(number)] for k in range(3)], (number, results)
        starts[number] = values[0][3]
    in_turn = sorted(starts, key=lambda number: starts[number])
    places = {number: place for place, number in enumerate(sorted(starts))}
    assert max(abs(places[number] - at) for at, number in enumerate(in_turn)) <= 2  # as they came, but for two at once


def held() -> dict[str, int]:
    """What this process and the machine hold because of it."""
    children = [entry for entry in Path("/proc").glob("[0-9]*/stat") if _parent(entry) == os.getpid()]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "children": len(children),
    }


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return -1


def memory_mb() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


@pytest.mark.slow
async def test_after_a_thousand_runs_nothing_is_left_and_memory_is_flat(two: ProcessSandbox) -> None:
    runs = 1000 if two.hides_files else 200  # a new interpreter for each takes longer
    source = "import os\nfor _ in range(2):\n    if not os.fork():\n        import time\n        time.sleep(100)\ndef f(x): return x + 1"

    async def some(count: int) -> None:
        reports = await asyncio.gather(
            *(grade_function(two, source, "f", [([k], k + 1)], LIMITS) for k in range(count))
        )
        assert all(report.all_passed for report in reports)

    await some(runs // 5)
    before, used = held(), memory_mb()
    for _ in range(4):
        await some(runs // 5)
    assert held() == before
    assert memory_mb() - used < 20


async def test_too_few_descriptors_are_a_fault_and_pass(two: ProcessSandbox) -> None:
    assert (await two.calls("def f(): return 1", "f", [[]]))[0].value == 1
    assert (await two.exec(["echo", "on"])).stdout == "on\n"
    before = held()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
    try:
        with pytest.raises(EnvironmentFault, match="Too many open files"):
            await two.calls("def f(): return 1", "f", [[]])
        with pytest.raises(EnvironmentFault, match="Too many open files"):
            await two.exec(["true"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (await two.calls("def f(): return 1", "f", [[]]))[0].value == 1
    assert (await two.exec(["echo", "on"])).stdout == "on\n"
    assert held() == before


def kill_zygotes() -> None:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        if _parent(entry.with_name("stat")) == os.getpid() and b"zygote.py" in entry.read_bytes():
            os.kill(int(entry.parent.name), signal.SIGKILL)


async def test_what_clones_boxes_may_be_killed(two: ProcessSandbox) -> None:
    if not two.hides_files:
        pytest.skip("nothing clones boxes in this tier")
    await two.calls("def f(): return 1", "f", [[]])
    running = asyncio.create_task(two.run_program("import time\ntime.sleep(50)", limits=LIMITS))
    await asyncio.sleep(0.5)
    kill_zygotes()
    with pytest.raises(EnvironmentFault, match="the sandbox failed"):
        await running
    assert (await two.calls("def f(): return 2", "f", [[]]))[0].value == 2


async def test_a_clock_that_is_set_changes_no_limit(two: ProcessSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 10**6)
    result = await two.run_program("print(1)", limits=QUICK)
    assert (result.outcome, result.stdout) == (RunOutcome.ok, "1\n") and 0 <= result.seconds < 60
    monkeypatch.setattr(time, "time", lambda: now() - 10**6)
    assert (await two.run_program("while True: pass", limits=QUICK)).outcome is RunOutcome.timeout
