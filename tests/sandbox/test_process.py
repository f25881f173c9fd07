"""The tiers: outcomes, limits, confinement and clean-up."""

import asyncio
import math
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import (
    TIERS,
    CallResult,
    ProcessSandbox,
    RunOutcome,
    SandboxLimits,
    default_sandbox,
    grade_function,
    make_sandbox,
)

from .tiers import tier

QUICK = SandboxLimits(wall_seconds=1.0, cpu_seconds=1)
ROOMY = SandboxLimits(wall_seconds=60.0, cpu_seconds=20)


@pytest_asyncio.fixture(params=TIERS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ProcessSandbox]:
    made = await tier(request.param, 4)
    assert isinstance(made, ProcessSandbox)
    yield made
    await made.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sandbox's directories appear, and nobody else's."""
    place = Path(tempfile.mkdtemp(prefix="t", dir=tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


async def call(sandbox: ProcessSandbox, source: str, *arguments: Any, limits: SandboxLimits = ROOMY) -> CallResult:
    return (await sandbox.calls(source, "f", [arguments], limits))[0]


def busy(folder: Path) -> bool:
    """Whether a submission of this process has a process or a directory: of a private user, where there are such.

    Elsewhere its process is the child of a supervisor or a zygote, which is ours.
    """
    parents, users = dict[int, int](), dict[int, int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            pid, parent, user = (int(fields[name].split()[0]) for name in ("Pid", "PPid", "Uid"))
        except (OSError, KeyError):
            continue
        parents[pid], users[pid] = parent, user

    def is_ours(pid: int) -> bool:
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid > 0

    def is_one(pid: int, user: int) -> bool:
        if os.geteuid() == 0:
            return user in range(61_000, 61_512) and is_ours(pid)
        return parents.get(parents[pid]) == os.getpid()

    return not empty(folder) or any(is_one(pid, user) for pid, user in users.items())


def children() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and (entry / "stat").read_bytes().rpartition(b")")[2].split()[1] == str(os.getpid()).encode()
            ):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def empty(folder: Path) -> bool:
    return not list(folder.iterdir())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never happened")


# --- values and outcomes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(10**300), 1.5, -0.0, "é\u2028\ud800", [], (), [1, (2, [3.0])], {"a": {1: (None,)}, (1, 2): []},
        {(1, "a")}, frozenset({2.5}), [set()], 1.5 - 2j, b"\x00a", range(1, 9, 2),
    ],
    ids=repr,
)  # fmt: skip
async def test_plain_values_come_back_with_their_types(sandbox: ProcessSandbox, value: object) -> None:
    result = await call(sandbox, "def f(a): return a", value)
    assert result.outcome is RunOutcome.ok
    assert repr(result.value) == repr(value)


async def test_nan_comes_back_as_nan(sandbox: ProcessSandbox) -> None:
    assert math.isnan((await call(sandbox, "def f(): return float('nan')")).value)


@pytest.mark.parametrize(
    "body",
    [
        "(i for i in range(3))", "type('E', (set,), {})({1, 2})", "object()", "type('I', (int,), {})(3)",
        "[type('S', (str,), {})('x')]",
    ],
)  # fmt: skip
async def test_objects_of_other_types_equal_no_plain_value(sandbox: ProcessSandbox, body: str) -> None:
    result = await call(sandbox, f"def f(): return {body}")
    assert result.outcome is RunOutcome.ok
    assert result.value not in (3, [0, 1, 2], {1, 2}, ["x"])


async def test_state_lasts_from_call_to_call_but_not_to_the_next_submission(sandbox: ProcessSandbox) -> None:
    source = "n = 0\ndef f():\n    global n\n    n += 1\n    return n"
    for _ in range(2):
        assert [result.value for result in await sandbox.calls(source, "f", [(), (), ()])] == [1, 2, 3]


async def test_an_exception_ends_one_call_only(sandbox: ProcessSandbox) -> None:
    results = await sandbox.calls("def f(a): return 1 / a", "f", [[1], [0], [2]])
    assert [result.outcome for result in results] == [RunOutcome.ok, RunOutcome.error, RunOutcome.ok]
    assert results[1].error == "ZeroDivisionError: division by zero"


async def test_exiting_fails_the_calls_that_are_left(sandbox: ProcessSandbox) -> None:
    for leave in ("sys.exit(0)", "os._exit(0)"):
        source = f"import os, sys\ndef f(a):\n    if a == 2: {leave}\n    return a"
        results = await sandbox.calls(source, "f", [[1], [2], [3]])
        assert [result.outcome for result in results] == [RunOutcome.ok, RunOutcome.exited, RunOutcome.exited]


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("def f(:", RunOutcome.syntax_error),
        ("def f(): pass\n\0", RunOutcome.syntax_error),
        ("def g(): pass", RunOutcome.error),
        ("f = 3", RunOutcome.error),
        ("import sys; sys.exit(0)", RunOutcome.exited),
        ("raise ValueError('x')", RunOutcome.error),
        ("#" * (257 << 10), RunOutcome.source_limit),
        ("def f(): return 'x' * (2 << 20)", RunOutcome.result_limit),
        ("def f(): return ['x' * 1000] * 5000", RunOutcome.result_limit),
        ("def f(): return 10 ** 5000", RunOutcome.result_limit),
        ("def f():\n    a = []\n    a.append(a)\n    return a", RunOutcome.result_limit),
        ("def f(): return bytearray(4 << 30)", RunOutcome.memory),
        ("import os\ndef f(): os.closerange(3, 4096)", RunOutcome.exited),
        ("import ctypes\ndef f(): ctypes.string_at(0)", RunOutcome.exited),
    ],
)
async def test_outcome_of_a_failing_submission(sandbox: ProcessSandbox, source: str, outcome: RunOutcome) -> None:
    results = await sandbox.calls(source, "f", [()], ROOMY)
    assert [result.outcome for result in results] == [outcome]
    assert results[0].error


async def test_a_missing_entry_is_named(sandbox: ProcessSandbox) -> None:
    assert "no function 'f'" in (await call(sandbox, "def g(): pass")).error


async def test_a_forged_reply_is_no_answer(sandbox: ProcessSandbox) -> None:
    source = (
        "import os, json\nbody = json.dumps({'i': '', 'r': 3}).encode()\n"
        "for fd in range(3, 4096):\n"
        "    try: os.write(fd, len(body).to_bytes(4, 'big') + body)\n"
        "    except OSError: pass\n"
        "def f(): return 3"
    )
    assert (await call(sandbox, source)).outcome is RunOutcome.error


async def test_output_is_kept_apart_from_answers(sandbox: ProcessSandbox) -> None:
    result = await call(
        sandbox, "import sys\ndef f():\n    print('out')\n    print('err', file=sys.stderr)\n    return 1"
    )
    assert (result.value, result.stdout, result.stderr) == (1, "out\n", "err\n")


async def test_asyncio_and_threads_work(sandbox: ProcessSandbox) -> None:
    source = """
import asyncio, threading
async def g(): await asyncio.sleep(0); return 4
def f():
    thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
    return asyncio.run(g())
"""
    assert (await call(sandbox, source)).value == 4


async def test_arguments_that_cannot_be_sent_are_a_user_error(sandbox: ProcessSandbox) -> None:
    with pytest.raises(UserError, match="no plain value"):
        await call(sandbox, "def f(a): return a", [{1: object()}])


# --- programs ------------------------------------------------------------------------------------------------------


async def test_a_program_reads_and_prints(sandbox: ProcessSandbox) -> None:
    run = await sandbox.run_program("print(int(input()) + 1)", "41\n")
    assert (run.outcome, run.exit_code, run.stdout, run.stderr) == (RunOutcome.ok, 0, "42\n", "")


@pytest.mark.parametrize(
    ("source", "outcome", "code"),
    [
        ("1 / 0", RunOutcome.error, 1),
        ("(", RunOutcome.syntax_error, 1),
        ("import sys; sys.exit(7)", RunOutcome.error, 7),
        ("bytearray(4 << 30)", RunOutcome.memory, 1),
        ("import ctypes; ctypes.string_at(0)", RunOutcome.exited, -11),
        (r"import sys; sys.stdout.buffer.write(b'\xff')", RunOutcome.error, 0),
    ],
)
async def test_a_program_that_fails(sandbox: ProcessSandbox, source: str, outcome: RunOutcome, code: int) -> None:
    run = await sandbox.run_program(source, "", ROOMY)
    assert (run.outcome, run.exit_code) == (outcome, code)


async def test_a_traceback_shows_the_program_only(sandbox: ProcessSandbox) -> None:
    run = await sandbox.run_program("1 / 0")
    assert "solution.py" in run.stderr and "child.py" not in run.stderr


async def test_a_program_need_not_read_its_input(sandbox: ProcessSandbox) -> None:
    assert (await sandbox.run_program("print(1)", "x" * (1 << 20))).outcome is RunOutcome.ok


# --- limits and confinement ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("while True: pass", RunOutcome.timeout),
        ("import time; time.sleep(1000)", RunOutcome.timeout),
        ("while True: print('x' * 10 ** 6)", RunOutcome.output_limit),
        ("import sys\nwhile True: sys.stderr.write('x' * 10 ** 6)", RunOutcome.output_limit),
    ],
)
async def test_limits_stop_functions_and_programs(sandbox: ProcessSandbox, source: str, outcome: RunOutcome) -> None:
    assert (await call(sandbox, source, limits=QUICK)).outcome is outcome
    assert (await sandbox.run_program(source, "", QUICK)).outcome is outcome


async def test_a_stopped_process_is_not_waited_for(sandbox: ProcessSandbox) -> None:
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    # without a user of its own it may send no signals; the first process of a namespace does not stop itself
    stops = sandbox.tier == "process" and os.geteuid() == 0
    allowed = {RunOutcome.timeout} if stops else {RunOutcome.timeout, RunOutcome.error}
    assert (await call(sandbox, source, limits=QUICK)).outcome in allowed


async def test_cpu_time_is_limited_apart_from_wall_time(sandbox: ProcessSandbox) -> None:
    limits = SandboxLimits(wall_seconds=60.0, cpu_seconds=1)
    result = await call(sandbox, "while True: pass", limits=limits)
    assert result.outcome is RunOutcome.timeout and "CPU" in result.error


async def test_a_file_over_the_limit_cannot_be_written(sandbox: ProcessSandbox) -> None:
    result = await call(sandbox, "def f():\n    with open('x', 'wb') as file: file.write(bytes(11 << 20))")
    assert result.outcome is RunOutcome.error and "File too large" in result.error


async def test_many_files_are_stopped(sandbox: ProcessSandbox) -> None:
    source = "i = 0\nwhile True:\n    i += 1\n    open(f'{i}', 'wb').write(bytes(1 << 20))"
    limits = SandboxLimits(wall_seconds=60.0, cpu_seconds=20, disk_mb=8)
    result = await call(sandbox, source, limits=limits)
    if sandbox.tier == "process":
        assert result.outcome is RunOutcome.output_limit
    else:
        assert result.outcome is RunOutcome.error and "No space left" in result.error


async def test_a_fork_bomb_ends(sandbox: ProcessSandbox, folder: Path) -> None:
    before = children()
    assert (await call(sandbox, "import os\nwhile True: os.fork()", limits=QUICK)).outcome is not RunOutcome.ok
    assert children() <= before and not busy(folder)


async def test_a_daemon_does_not_survive(sandbox: ProcessSandbox, folder: Path) -> None:
    source = """
import os, time
def f():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, b"x")
            time.sleep(3600)
        os._exit(0)
    return os.read(reader, 20)
"""
    result = await call(sandbox, source)
    assert result.value == b"x" and not busy(folder)


async def test_the_environment_is_empty(sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    assert (await call(sandbox, "import os\ndef f(): return dict(os.environ)")).value == {}


async def test_the_network_is_closed(sandbox: ProcessSandbox) -> None:
    source = "import socket\ndef f(family, kind): socket.socket(family, kind)"
    results = await sandbox.calls(source, "f", [[2, 1], [2, 2], [10, 1], [16, 3], [1, 1], [1, 2], [40, 1]])
    assert {result.error for result in results} == {"PermissionError: [Errno 1] Operation not permitted"}


async def test_every_promised_property_holds(sandbox: ProcessSandbox) -> None:
    probes = await sandbox.self_test()
    assert len(probes) >= 15
    assert [probe for probe in probes if probe.promised and not probe.holds] == []


# --- clean-up and faults -------------------------------------------------------------------------------------------


async def test_nothing_is_left_after_many_gradings_at_once(sandbox: ProcessSandbox, folder: Path) -> None:
    slow = (
        "import time\ndef f(): time.sleep(0.2)"  # as many at once as there may be: what is kept for later submissions
    )
    await asyncio.gather(*(call(sandbox, slow) for _ in range(4)))
    before, fds = children(), len(os.listdir("/proc/self/fd"))
    sources = [
        "def f(a): return a",
        "import os\nos.makedirs('a/b/c'); os.chmod('a/b', 0)\ndef f(a): return a",
        "def f(a): raise ValueError",
        "import os\nos._exit(0)",
        "import os, time\nif os.fork() == 0: time.sleep(100)\ndef f(a): return a",
    ]
    tests: Sequence[tuple[Sequence[Any], Any]] = [([1], 1), (["x"], "x")]
    grades = [grade_function(sandbox, sources[i % 5], "f", tests, ROOMY) for i in range(50)]
    reports = await asyncio.gather(*grades)
    assert [report.passed for report in reports] == [2, 2, 0, 0, 2] * 10
    assert children() <= before and not busy(folder)
    assert len(os.listdir("/proc/self/fd")) <= fds


async def test_cancelling_cleans_up(sandbox: ProcessSandbox, folder: Path) -> None:
    before = children()
    task = asyncio.create_task(call(sandbox, "while True: pass"))
    await until(lambda: busy(folder))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() <= before and not busy(folder)


def test_ending_the_event_loop_cleans_up(sandbox: ProcessSandbox, folder: Path) -> None:
    before = children()

    async def abandon(until_started: bool) -> None:
        task = asyncio.create_task(call(sandbox, "while True: pass"))
        await until(lambda: busy(folder) or not until_started)
        assert not task.done()

    for until_started in (False, True):
        asyncio.run(abandon(until_started))
        assert children() <= before and not busy(folder)


async def test_closing_ends_what_runs(sandbox: ProcessSandbox, folder: Path) -> None:
    task = asyncio.create_task(call(sandbox, "while True: pass"))
    await until(lambda: busy(folder))
    await sandbox.close()
    assert task.cancelled() and not busy(folder)


async def test_a_sandbox_that_cannot_start_is_a_fault(
    sandbox: ProcessSandbox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = type(sandbox)(1)
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(EnvironmentFault):
        await call(another, "def f(): return 1")
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(EnvironmentFault):
        await call(another, "def f(): return 1")
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with pytest.raises(EnvironmentFault):
        await call(another, "def f(): return 1")
    assert empty(folder)


def test_one_sandbox_serves_several_event_loops(sandbox: ProcessSandbox) -> None:
    for _ in range(2):
        assert asyncio.run(call(sandbox, "def f(): return 1")).value == 1


@pytest.mark.parametrize("concurrency", [0, -1, 257, 512])
def test_a_concurrency_that_needs_more_users_than_there_are_is_refused(concurrency: int) -> None:
    with pytest.raises(UserError, match=f"from 1 to 256, not {concurrency}"):
        ProcessSandbox(concurrency)
    assert ProcessSandbox(256)


GROUP = """
class Odd(ExceptionGroup):
    def __init__(self, text):
        self.args = (text, "x")

    def __new__(cls, text):
        return super().__new__(cls, text, [OSError()])

def f(a):
    raise Odd("odd")
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a): return {}[a]", "KeyError"),
        ("def f(a): b'\\xff'.decode()", "ValueError"),  # whose own kind takes five arguments
        (GROUP, "Exception"),
    ],
)
async def test_tests_see_the_nearest_exception_that_can_be_made(
    sandbox: ProcessSandbox, source: str, expected: str
) -> None:
    tests = f"try:\n    f(1)\nexcept Exception as error:\n    assert isinstance(error, {expected}), type(error)\nelse:\n    assert False"
    result = await sandbox.check(source, "f", tests, ROOMY)
    assert (result.outcome, result.value, result.error) == (RunOutcome.ok, True, "")
    if expected == "Exception":
        refused = await sandbox.check(source, "f", "try:\n    f(1)\nexcept (TypeError, ValueError): pass", ROOMY)
        assert (refused.outcome, refused.error) == (RunOutcome.error, "Odd: odd (1 sub-exception)")


def test_an_unknown_tier_is_a_user_error() -> None:
    with pytest.raises(UserError, match="did you mean 'process'"):
        make_sandbox("proces")


def test_the_default_sandbox_is_shared() -> None:
    assert default_sandbox() is default_sandbox()


def test_limits_refuse_unknown_names() -> None:
    with pytest.raises(ValueError, match="wall"):
        SandboxLimits(wall=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "kind", ["set({})", "frozenset({})", "dict.fromkeys({})", "{{tuple(k for _ in '12'): 1 for k in {}}}"]
)
async def test_keys_of_one_hash_do_not_hold_up_the_grader(sandbox: ProcessSandbox, kind: str) -> None:
    many = kind.format("[k * (2**61 - 1) for k in range(200)]")
    assert (await call(sandbox, f"def f(): return {many}")).outcome is RunOutcome.result_limit
    few = kind.format("[k * (2**61 - 1) for k in range(20)]")
    assert len((await call(sandbox, f"def f(): return {few}")).value) == 20


async def test_what_is_said_of_an_error_can_be_written_down(sandbox: ProcessSandbox) -> None:
    source = "class \u00e4Error(Exception): pass\ndef f(): raise \u00e4Error('half of a character: \\ud800')"
    result = await call(sandbox, source)
    assert (
        result.outcome is RunOutcome.error and result.error.encode() == "\u00e4Error: half of a character: ?".encode()
    )
