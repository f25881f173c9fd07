"""A sandbox over HTTP: the same results, a key, limits, and nothing left when a caller is gone."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from envhub.cli.app import run as cli
from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import (
    Comparison,
    RemoteSandbox,
    RunOutcome,
    SandboxLimits,
    SessionError,
    best_tier,
    default_sandbox,
    grade_function,
    grade_program,
    make_sandbox,
)
from envhub.servers.sandbox_server import SandboxServer, serve
from envhub.servers.settings import LARGEST, ServerSettings

KEY = "a key for tests"


@asynccontextmanager
async def served(key: str = KEY, largest: SandboxLimits = LARGEST, **settings: Any) -> AsyncIterator[RemoteSandbox]:
    server = SandboxServer(make_sandbox(), key, ServerSettings(**settings), largest)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(server, "127.0.0.1", 0, port.set_result))
    client = RemoteSandbox(f"http://127.0.0.1:{await port}/")
    try:
        yield client
    finally:
        await client.close()
        serving.cancel()
        await asyncio.wait([serving])


@pytest_asyncio.fixture
async def sandbox(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RemoteSandbox]:
    monkeypatch.setenv("ENVHUB_SANDBOX_KEY", KEY)
    async with served() as client:
        yield client


async def test_graders_need_not_know_where_a_submission_runs(sandbox: RemoteSandbox) -> None:
    await sandbox.start()
    assert sandbox.tier == best_tier()
    source = "def f(x):\n    return (x, {1: {2.5}}, b'y', 1j, range(3), None, [True], frozenset('a'))"
    wanted = ("a", {1: {2.5}}, b"y", 1j, range(3), None, [True], frozenset("a"))
    [result] = await sandbox.calls(source, "f", [["a"]])
    assert (result.outcome, result.value) == (RunOutcome.ok, wanted)
    report = await grade_function(
        sandbox, "def f(x): return [2, x]", "f", [([1], [1, 2])], comparison=Comparison.of("unordered")
    )
    assert report.all_passed
    results = await sandbox.unit_tests("def f(): return 2", "import solution\ndef test_f(): assert solution.f() == 2")
    assert [(result.name, result.passed) for result in results] == [("test_f", True)]
    report = await grade_program(sandbox, "echo $(($(cat) + 1))", [("4", "5"), ("5", "7")], language="bash")
    assert report.outcomes == {"passed": 1, "wrong": 1}


async def test_every_way_to_fail_comes_back_as_it_was(sandbox: RemoteSandbox) -> None:
    results = await sandbox.calls("print('seen')\ndef f(x): return 1 // x", "f", [[1], [0]])
    assert [result.outcome for result in results] == [RunOutcome.ok, RunOutcome.error]
    assert (
        results[1].raised == ("ZeroDivisionError", "integer division or modulo by zero")
        and results[1].stdout == "seen\n"
    )
    [odd] = await sandbox.calls("class A:\n    def __eq__(self, other): return True\ndef f(): return A()", "f", [[]])
    assert odd.outcome is RunOutcome.ok and odd.value != 1 and "A object" in repr(odd.value)
    slow = await sandbox.run_program("while True: pass", limits=SandboxLimits(wall_seconds=0.5))
    assert slow.outcome is RunOutcome.timeout
    judged = await sandbox.check("def f(): return 2", "f", "assert f() == 1, 'not one'")
    assert (judged.outcome, judged.value) == (RunOutcome.ok, False) and "not one" in judged.error
    with pytest.raises(UserError, match="no plain value"):
        await sandbox.calls("", "f", [[object()]])


async def test_a_session_lives_on_the_server(sandbox: RemoteSandbox) -> None:
    async with await sandbox.open_session() as session:
        await session.write("a/run.sh", b"echo $1 $WHO; cat; pwd", executable=True)
        result = await session.exec(["bash", "run.sh", "x"], stdin="in\n", env={"WHO": "me"}, cwd="a")
        assert (result.outcome, result.stdout) == (RunOutcome.ok, f"x me\nin\n{session.home}/a\n")
        with pytest.raises(SessionError, match="nowhere: No such file") as refused:
            await session.read("nowhere")
        assert refused.value.errno == 2
        assert (await session.exec(["sleep", "60"], wall_seconds=0.2)).outcome is RunOutcome.timeout
        snapshot = await session.snapshot()
    async with await sandbox.open_session(snapshot=snapshot) as fork:
        assert await fork.read("a/run.sh") == b"echo $1 $WHO; cat; pwd"
        await fork.restore(snapshot)
    with pytest.raises(SessionError, match="no such session"):
        await fork.read("a/run.sh")
    await fork.close()


async def test_without_the_key_nothing_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as client:
        for key in ("", "another", "a key for test", "\u00e4"):
            monkeypatch.setenv("ENVHUB_SANDBOX_KEY", key)
            fresh = RemoteSandbox(client.url)
            with pytest.raises(UserError, match="refuses the key: set ENVHUB_SANDBOX_KEY"):
                await fresh.start()
            await fresh.close()


async def test_more_than_the_server_gives_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(key="", largest=SandboxLimits(wall_seconds=20.0)) as client:
        with pytest.raises(UserError, match="wall_seconds is at most 20.0 on this server, not 30.0"):
            await client.run_program("", limits=SandboxLimits(wall_seconds=30.0))
        async with await client.open_session() as session:
            with pytest.raises(UserError, match="wall_seconds is above 0 and at most 20, not 21"):
                await session.exec(["true"], wall_seconds=21)


async def test_a_session_that_nobody_uses_is_ended() -> None:
    async with served(key="", idle_seconds=0.2) as client:
        session = await client.open_session()
        slow = await session.exec(["sleep", "0.8"])
        assert slow.outcome is RunOutcome.ok  # it was used all the time
        while (await client.ask("GET", "/health"))["sessions"]:
            await asyncio.sleep(0.05)
        with pytest.raises(SessionError, match="nobody used it for too long"):
            await session.exec(["true"])


async def test_who_is_told_that_it_is_busy_waits() -> None:
    async with served(key="", most_requests=2, most_sessions=1) as client:
        results = await asyncio.gather(*(client.run_program(f"print({number})") for number in range(12)))
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(12)]
        first = await client.open_session()
        second = asyncio.create_task(client.open_session())
        await asyncio.sleep(0.5)
        assert not second.done()
        await first.close()
        await (await second).close()


async def test_what_runs_for_a_caller_who_is_gone_is_killed() -> None:
    async with served(key="") as client:
        asking = asyncio.create_task(
            client.run_program("while True: pass", limits=SandboxLimits(wall_seconds=500.0, cpu_seconds=500))
        )
        while not (await client.ask("GET", "/health"))["requests"]:
            await asyncio.sleep(0.02)
        asking.cancel()
        while (await client.ask("GET", "/health"))["requests"]:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/run", b"{", 400, "no JSON"),
        ("/run", b"[]", 400, "no JSON object"),
        ("/run", b"\xff", 400, "no JSON"),
        ("/run", b"[" * 100_000, 400, "no JSON"),
        ("/run", b"{}", 400, "source is missing"),
        ("/run", b'{"source": 5}', 400, "source is a text"),
        ("/run", b'{"source": "", "limits": {"cpu_seconds": -1}}', 400, "limits: cpu_seconds"),
        ("/run", b'{"source": "", "limits": {"cpus": 1}}', 400, "limits: cpus"),
        ("/run", b'{"source": "", "limits": 7}', 400, "limits: "),
        ("/calls", b'{"source": "", "entry": "f", "calls": [{"x": 1}]}', 400, "calls: not a value"),
        ("/calls", b'{"source": "", "entry": "f", "calls": [7]}', 400, "each is a list of arguments"),
        ("/calls", b'{"source": "", "entry": "f", "calls": 7}', 400, "calls: "),
        ("/sessions", b'{"snapshot": "!"}', 400, "snapshot: no base64"),
        ("/sessions/x/exec", b"{}", 404, "no such session"),
        ("/nowhere", b"{}", 404, "Not Found"),
    ],
)
async def test_a_request_that_is_none_is_answered_with_what_is_wrong(
    path: str, body: bytes, status: int, said: str
) -> None:
    async with served(key="") as client, httpx.AsyncClient(trust_env=False) as plain:
        answer = await plain.post(f"{client.url}{path}", content=body)
        assert answer.status_code == status and said in answer.json()["error"], answer.text


@pytest.mark.parametrize(
    ("what", "given", "said"),
    [
        ("exec", {"argv": "ls"}, "argv is a list of texts"),
        ("exec", {"argv": ["ls"], "env": {"A": 1}}, "env is an object of texts"),
        ("exec", {"argv": ["ls"], "wall_seconds": True}, "wall_seconds is above 0"),
        ("exec", {"argv": []}, "argv is empty"),
        ("read", {"path": "x", "most_kb": "1"}, "most_kb is a number"),
        ("write", {"path": "x"}, "data: bytes come as base64"),
        ("fly", {}, "a session has no 'fly'"),
    ],
)
async def test_a_request_to_a_session_that_is_none_is_named(what: str, given: dict[str, Any], said: str) -> None:
    async with served(key="") as client, await client.open_session() as session:
        with pytest.raises((UserError, SessionError), match=said):
            await client.ask("POST", f"{session._path}/{what}", given)


async def test_a_server_that_is_not_there_is_a_fault_and_no_verdict() -> None:
    client = RemoteSandbox("http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="http://127.0.0.1:9 gives no answer"):
        await client.run_program("print(1)")
    await client.close()
    with pytest.raises(UserError, match="begins with http"):
        RemoteSandbox("127.0.0.1:9")


async def test_less_than_the_minimum_is_refused_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from envhub import sandbox as package

    async with served(key="") as client:
        monkeypatch.setattr(package, "_shared", None)
        monkeypatch.setenv("ENVHUB_SANDBOX", client.url)
        monkeypatch.setenv("ENVHUB_SANDBOX_MINIMUM", "slot")
        made = default_sandbox()
        if best_tier() == "slot":
            await made.start()
        else:
            with pytest.raises(UserError, match="promises less than ENVHUB_SANDBOX_MINIMUM=slot"):
                await made.start()
        await made.close()
        monkeypatch.setattr(package, "_shared", None)


def test_an_evaluation_takes_a_server_by_its_address_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    environment = {**os.environ, "ENVHUB_SANDBOX_KEY": KEY, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "envhub.cli"]
    server = subprocess.Popen(
        [*command, "serve", "sandbox", "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        found = re.search(r"serving the (\w+) sandbox at (http://127\.0\.0\.1:\d+)", server.stdout.readline())
        assert found is not None
        environment["ENVHUB_SANDBOX"] = found[2]
        played = subprocess.run(
            [*command, "eval", "sandbox_code", "--model", "scripted:oracle", "--tasks", "3", "--output", str(tmp_path / "run")],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert played.returncode == 0, played.stderr
        rollouts = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
        assert [rollout["reward"] for rollout in rollouts] == [1.0, 1.0, 1.0]
        doctor = subprocess.run([*command, "doctor", "--json"], env=environment, capture_output=True, text=True)
        assert f"server {found[2]} (in use): tier {found[1]}" in doctor.stdout
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "whoever reaches 0.0.0.0 could run programs here: set ENVHUB_SANDBOX_KEY"),
        (["--largest", "nowhere.toml"], "cannot read nowhere.toml"),
        (["--tier", "slots"], "did you mean 'slot'"),
        (["--most-sessions", "0"], "most_sessions"),
        (["--port", "99999"], "port"),
    ],
)
def test_a_mistake_in_serving_is_named(
    flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ENVHUB_SANDBOX_KEY", raising=False)
    assert cli(["serve", "sandbox", *flags]) == 2
    assert said in capsys.readouterr().err
