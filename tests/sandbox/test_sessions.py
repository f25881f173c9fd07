"""Programs and sessions: what runs, what lasts, what is bounded, and what is gone afterwards."""

import asyncio
import errno
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envhub.sandbox import TIERS, ExecResult, ProcessSandbox, RunOutcome, SandboxLimits, Session, SessionError

from .tiers import tier

ROOMY = SandboxLimits(wall_seconds=60.0, cpu_seconds=20)
PYTHON = "python3"


@pytest_asyncio.fixture(params=TIERS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ProcessSandbox]:
    made = await tier(request.param, 4)
    assert isinstance(made, ProcessSandbox)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def session(sandbox: ProcessSandbox) -> AsyncIterator[Session]:
    async with await sandbox.open_session(ROOMY) as made:
        yield made


async def python(session: Session, source: str) -> ExecResult:
    return await session.exec([PYTHON, "-c", source])


def ended(result: ExecResult) -> tuple[RunOutcome, int, str]:
    return result.outcome, result.exit_code, result.stdout


# --- one program ---------------------------------------------------------------------------------------------------


async def test_a_program_gets_its_arguments_files_stdin_and_environment(sandbox: ProcessSandbox) -> None:
    script = 'read line; echo "$line $1 $WHO"; cat data/x; echo oh >&2'
    result = await sandbox.exec(
        ["bash", "-c", script, "bash", "two words"], files={"data/x": b"\xff\n"}, stdin="in\n", env={"WHO": "me"}
    )
    assert ended(result) == (RunOutcome.ok, 0, "in two words me\n\ufffd\n")
    assert result.stderr == "oh\n" and 0 < result.seconds < 10


async def test_a_program_runs_in_the_folder_that_it_is_told(session: Session) -> None:
    await session.write("deep/down/x", "")
    for cwd in ("deep/down", f"{session.home}/deep/down"):
        assert (await session.exec(["ls"], cwd=cwd)).stdout == "x\n"
    assert (await session.exec(["pwd"])).stdout == f"{session.home}\n"
    nowhere = await session.exec(["ls"], cwd="nowhere")
    assert nowhere.exit_code == 126 and "nowhere: No such file" in nowhere.stderr


async def test_nothing_of_the_callers_environment_is_there(
    sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", canary := secrets.token_hex(8))
    result = await sandbox.exec(["env"])
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    assert canary not in result.stdout and {"PATH", "HOME", "LANG"} <= names and "SECRET" not in names


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["bash", "-c", "exit 3"], 3, ""),
        (["no-such-program"], 127, "no-such-program: command not found"),
        (["./data"], 126, "Permission denied"),
        (["bash", "-c", "kill -TERM $$"], -15, ""),
    ],
)
async def test_how_a_program_ends_is_told(sandbox: ProcessSandbox, argv: list[str], code: int, said: str) -> None:
    if code < 0 and os.geteuid() != 0:
        pytest.skip("without a private user no signal can be sent")
    result = await sandbox.exec(argv, files={"data": "x"})
    assert (result.outcome, result.exit_code) == (RunOutcome.exited, code) and said in result.stderr


@pytest.mark.parametrize(
    ("argv", "env", "said"),
    [
        ([], {}, "argv is empty"),
        (["ls", "a\0b"], {}, "an argument has a NUL"),
        (["ls"], {"A=B": "x"}, "'A=B' is no name of an environment variable"),
        (["ls"], {"A": "\0"}, "A has a NUL"),
    ],
)
async def test_what_no_program_can_be_given_is_refused(
    session: Session, argv: list[str], env: dict[str, str], said: str
) -> None:
    with pytest.raises(SessionError, match=said):
        await session.exec(argv, env=env)
    assert (await session.exec(["true"])).outcome is RunOutcome.ok


async def test_limits_are_of_each_program_and_the_session_lives_on(session: Session) -> None:
    slow = await session.exec(["bash", "-c", "echo begun; sleep 60"], wall_seconds=0.3)
    assert slow.outcome is RunOutcome.timeout
    if session.ended:
        assert os.geteuid() != 0  # nothing less than the box can be ended there
        return
    assert slow.stdout == "begun\n"
    loud = await session.exec(["bash", "-c", "while :; do echo xxxxxxxxxxxxxxxx; done"])
    assert loud.outcome is RunOutcome.output_limit
    assert len(loud.stdout) == session.limits.output_kb << 10
    assert ended(await session.exec(["echo", "still here"])) == (RunOutcome.ok, 0, "still here\n")


async def test_cpu_time_is_bounded_for_each_program(sandbox: ProcessSandbox) -> None:
    async with await sandbox.open_session(SandboxLimits(wall_seconds=30.0, cpu_seconds=1)) as session:
        for _ in range(2):
            assert (await python(session, "while True: pass")).outcome is RunOutcome.timeout
        assert (await python(session, "sum(range(10**6))")).outcome is RunOutcome.ok


async def test_a_program_that_hoards_memory_is_stopped_and_said_to(sandbox: ProcessSandbox) -> None:
    limits = SandboxLimits(wall_seconds=30.0, total_mb=64, memory_mb=256)
    async with await sandbox.open_session(limits) as session:
        result = await python(session, "held = bytearray(b'x') * (128 << 20); print(len(held))")
        if sandbox.unbounded:
            return
        assert result.outcome is RunOutcome.memory
        assert (await session.exec(["true"])).outcome is RunOutcome.ok
        assert (await python(session, "bytearray(512 << 20)")).exit_code == 1  # its own limit, as an error of its own


async def test_what_a_program_leaves_running_holds_up_nobody(session: Session) -> None:
    begun = time.monotonic()
    result = await session.exec(["bash", "-c", "(sleep 50; echo late) & echo now"])
    assert ended(result) == (RunOutcome.ok, 0, "now\n") and time.monotonic() - begun < 10


# --- files ---------------------------------------------------------------------------------------------------------


async def test_files_and_programs_last_through_a_session(session: Session) -> None:
    await session.write("deep/down/run.sh", "echo $((6 * 7)) > answer; sleep 40 &", executable=True)
    assert (await session.exec(["bash", "deep/down/run.sh"])).outcome is RunOutcome.ok
    assert await session.read("answer") == b"42\n"
    assert await session.read(f"{session.home}/answer") == b"42\n"
    await session.write("answer", b"")
    assert await session.read("answer") == b""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("mkdir x", "EISDIR"),
        ("mkfifo x", "EINVAL"),
        ("ln -s /etc/passwd x", "ELOOP"),
        ("true", "ENOENT"),
        ("truncate -s 900K x", "EFBIG"),
        ("touch x; chmod 0 x", "EACCES"),
    ],
)
async def test_what_is_no_file_to_be_read_is_refused(session: Session, made: str, said: str) -> None:
    await session.exec(["bash", "-c", made])
    with pytest.raises(SessionError, match="^x: ") as refused:
        await session.read("x", most_kb=512)
    assert refused.value.errno == getattr(errno, said)
    assert ended(await session.exec(["echo", "on"])) == (RunOutcome.ok, 0, "on\n")


async def test_a_file_without_room_is_refused_and_one_that_is_large_comes_whole(session: Session) -> None:
    data = os.urandom(3 << 20)
    await session.write("large", data)
    assert await session.read("large") == data
    with pytest.raises(SessionError, match="huge: File too large"):
        await session.write("huge", bytes(11 << 20))
    with pytest.raises(SessionError, match="names no file"):
        await session.write("folder/", b"")
    with pytest.raises(SessionError, match="NUL"):
        await session.read("a\0b")


async def test_a_snapshot_is_the_beginning_of_others(sandbox: ProcessSandbox) -> None:
    async with await sandbox.open_session(ROOMY) as first:
        await first.exec(
            ["bash", "-c", "mkdir d; echo one > d/x; ln -s x d/link; ln d/x d/twin; mkfifo p; chmod 755 d/x"]
        )
        snapshot = await first.snapshot()
        await first.exec(["bash", "-c", "echo changed > d/x"])
    forks = [await sandbox.open_session(ROOMY, snapshot=snapshot) for _ in range(2)]
    try:
        await forks[0].write("d/x", "zero")
        assert await forks[1].read("d/x") == b"one\n" and await forks[0].read("d/x") == b"zero"
        shown = await forks[1].exec(["bash", "-c", "cat d/link d/twin; test -p p && test -x d/x && echo kept"])
        assert ended(shown) == (RunOutcome.ok, 0, "one\none\nkept\n")
    finally:
        for fork in forks:
            await fork.close()


async def test_files_that_claim_more_than_there_is_room_for_are_in_no_snapshot(session: Session) -> None:
    await session.exec(["bash", "-c", "for n in $(seq 20); do truncate -s 9M sparse$n; done"])
    with pytest.raises(SessionError, match="larger than"):
        await session.snapshot()
    assert ended(await session.exec(["bash", "-c", "rm sparse*; echo on"])) == (RunOutcome.ok, 0, "on\n")
    assert (await session.snapshot()).archive


# --- confinement ---------------------------------------------------------------------------------------------------

ATTEMPTS = {
    "network": "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "abstract sockets": "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
    "parent's memory": f"open('/proc/{os.getpid()}/mem', 'rb')",
    "parent's environment": f"open('/proc/{os.getpid()}/environ', 'rb').read()",
    "first process's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
    "first process's descriptors": "import os; os.listdir(f'/proc/{os.getppid()}/fd')[0]",
    "trace": "import ctypes; r = ctypes.CDLL(None).ptrace(0, 0, 0, 0)\nif r < 0: raise OSError",
    "namespaces": "import ctypes; r = ctypes.CDLL(None).unshare(0x10000000)\nif r < 0: raise OSError",
    "outside": "open('/usr/x', 'w')",
    "packages": "import envhub",
}


@pytest.mark.parametrize("name", ATTEMPTS)
async def test_a_program_reaches_nothing_outside(session: Session, name: str) -> None:
    if os.geteuid() != 0 and name.startswith(("parent's", "first")):
        pytest.skip("without a private user it depends on the kernel's settings")
    body = ATTEMPTS[name].replace("\n", "\n    ")
    result = await python(session, f"try:\n    {body}\nexcept (OSError, ImportError):\n    print('stopped')")
    assert ended(result) == (RunOutcome.ok, 0, "stopped\n")


async def test_a_program_has_no_descriptors_but_its_own(session: Session) -> None:
    if session.home != "/tmp":
        pytest.skip("its /proc cannot be read")
    result = await session.exec(["bash", "-c", "for fd in /proc/self/fd/*; do readlink $fd; done"])
    assert {line.partition(":")[0] for line in result.stdout.splitlines()} <= {"/memfd", "pipe", "/proc/2/fd"}, result


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that every user of the machine may read."""
    tmp_path.chmod(0o777)
    (tmp_path / "secret").write_text("canary")
    return tmp_path / "secret"


async def test_files_of_the_machine_stay_unseen(session: Session, secret: Path) -> None:
    result = await session.exec(["cat", str(secret), "/etc/hostname", "/etc/shadow"])
    assert "canary" not in result.stdout and "root" not in result.stdout and result.exit_code


async def test_a_program_that_kills_all_it_can_ends_nothing_but_its_session(sandbox: ProcessSandbox) -> None:
    async with await sandbox.open_session(ROOMY) as session:
        result = await python(session, "import os, signal; [os.kill(p, signal.SIGKILL) for p in (1, os.getppid())]")
        assert result.outcome in (RunOutcome.ok, RunOutcome.exited)
        again = await session.exec(["echo", "on"])
        if session.ended:
            assert again.outcome is RunOutcome.exited and "the session has ended" in again.stderr
            with pytest.raises(SessionError, match="the session has ended"):
                await session.read("x")
        else:
            assert again.stdout == "on\n"
    assert (await sandbox.exec(["echo", "on"])).stdout == "on\n"


async def test_more_processes_than_allowed_are_refused_to_the_program(sandbox: ProcessSandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("without a private user the limit is approximate")
    bomb = "import os, time\nn = 0\ntry:\n    while os.fork(): n += 1\nexcept OSError: print(n)\nelse: time.sleep(50)"
    async with await sandbox.open_session(SandboxLimits(wall_seconds=30.0, processes=8)) as session:
        for _ in range(2):
            assert ended(await session.exec([PYTHON, "-c", bomb])) == (RunOutcome.ok, 0, "7\n")
            assert ended(await session.exec(["echo", "on"])) == (RunOutcome.ok, 0, "on\n")  # beside all that was left
            await session.kill()


# --- the end -------------------------------------------------------------------------------------------------------


def named(name: str) -> bool:
    """Whether a process with that argument runs on the machine."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name.encode() in file.read_bytes():
                return True
        except OSError:
            continue
    return False


def is_there(folder: str) -> bool:
    return Path(folder).exists()


async def test_nothing_is_left_when_a_session_is_closed(sandbox: ProcessSandbox) -> None:
    session = await sandbox.open_session(ROOMY)
    name = f"left-{secrets.token_hex(6)}"
    await session.exec(["bash", "-c", "setsid bash -c 'sleep 300; true' \"$0\" & disown", name])
    assert named(name)
    await session.close()
    await session.close()
    assert not named(name) and (session.home == "/tmp" or not is_there(session.home))
    assert "closed" in (await session.exec(["true"])).stderr


async def test_a_call_that_is_cancelled_ends_its_session(sandbox: ProcessSandbox) -> None:
    session = await sandbox.open_session(ROOMY)
    name = f"left-{secrets.token_hex(6)}"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await session.exec(["bash", "-c", "sleep 300; true", name])
    assert "cancelled" in (await session.exec(["true"])).stderr
    await session.close()
    assert not named(name)


async def test_a_sandbox_that_is_closed_ends_its_sessions(sandbox: ProcessSandbox) -> None:
    session = await sandbox.open_session(ROOMY)
    name = f"left-{secrets.token_hex(6)}"
    running = asyncio.create_task(session.exec(["bash", "-c", "sleep 300; true", name]))
    while not named(name):
        await asyncio.sleep(0.01)
    await sandbox.close()
    await asyncio.wait([running])
    assert session.ended
    await session.close()
    assert not named(name)


async def test_many_sessions_are_open_at_once_and_none_sees_another(sandbox: ProcessSandbox) -> None:
    sessions = [await sandbox.open_session(ROOMY) for _ in range(12)]
    try:
        for number, session in enumerate(sessions):
            await session.write("mine", str(number))
        found = await asyncio.gather(*(session.exec(["cat", "mine"]) for session in sessions for _ in range(2)))
        assert [result.stdout for result in found] == [str(number // 2) for number in range(24)]
    finally:
        await asyncio.gather(*(session.close() for session in sessions))
