"""A sandbox on another machine, or in another process: the same interface, served by `envhub serve sandbox`."""

import asyncio
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import messages
from envhub.sandbox.base import (
    CallResult,
    ExecResult,
    Probe,
    Sandbox,
    SandboxLimits,
    Session,
    SessionError,
    Snapshot,
    TestResult,
)
from envhub.sandbox.process import is_plain
from envhub.sandbox.wire import encode

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS = 10.0
_SPARE_SECONDS = 120.0  # of a request, beside what its limits allow: it may wait for its turn
_BUSY_SECONDS = 300.0
_PAUSE = 0.2


class RemoteSandbox(Sandbox):
    """A client of a sandbox server; its `tier` is the server's, once it is started.

    The key comes from the environment (ENVHUB_SANDBOX_KEY). A server that is busy is asked again for five minutes.
    """

    def __init__(self, url: str, *, minimum: str = "", tiers: Sequence[str] = ()) -> None:
        """`minimum` is the tier of `tiers` (the best first) that the server has to have at least."""
        if not url.startswith(("http://", "https://")):
            raise UserError(f"the address of a sandbox server begins with http:// or https://, not {url!r}")
        self.url, self.tier = url.rstrip("/"), f"at {url}"
        self._minimum, self._tiers = minimum, list(tiers)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._clients = weakref.WeakKeyDictionary()

    def _client(self) -> "httpx.AsyncClient":
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            key = os.environ.get(messages.KEY, "")
            headers = {b"Authorization": b"Bearer " + key.encode("utf-8", "surrogateescape")} if key else {}
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._clients[loop] = httpx.AsyncClient(headers=headers, limits=limits, trust_env=False)
        return self._clients[loop]

    async def start(self) -> None:
        found = await self.ask("GET", "/health")
        self.tier = str(found.get("tier", ""))
        if self._minimum and (
            self.tier not in self._tiers or self._tiers.index(self.tier) > self._tiers.index(self._minimum)
        ):
            raise UserError(
                f"the sandbox server {self.url} has the tier {self.tier!r}, which promises less than "
                f"ENVHUB_SANDBOX_MINIMUM={self._minimum}"
            )

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def ask(self, method: str, path: str, data: object = None, *, seconds: float = 0.0) -> dict[str, Any]:
        """The answer to a request that may take so many seconds, or more while the server is busy.

        Raises `UserError`, `SessionError` and `EnvironmentFault` as the sandbox there did, and the last where it cannot be reached.
        """
        import httpx

        timeout = httpx.Timeout(seconds + _SPARE_SECONDS, connect=_CONNECT_SECONDS)
        patience = asyncio.get_running_loop().time() + _BUSY_SECONDS
        while True:
            try:
                answer = await self._client().request(method, f"{self.url}{path}", json=data, timeout=timeout)
                found = answer.json()
            except (httpx.HTTPError, json.JSONDecodeError, UnicodeDecodeError) as problem:
                said = str(problem) or type(problem).__name__
                raise EnvironmentFault(f"the sandbox server {self.url} gives no answer: {said}") from problem
            if answer.status_code != 503 or asyncio.get_running_loop().time() > patience:
                break
            await asyncio.sleep(_PAUSE)
        if not isinstance(found, dict):
            raise EnvironmentFault(f"the sandbox server {self.url} gives an answer that is none: {found!r:.100}")
        if answer.status_code == 200:
            return found
        said = str(found.get("error", f"status {answer.status_code}"))
        if answer.status_code == 401:
            raise UserError(f"the sandbox server {self.url} refuses the key: set {messages.KEY} to its key")
        if answer.status_code in (400, 413):
            raise UserError(said)
        if answer.status_code in (404, 409):
            raise SessionError(said, found.get("errno"))
        raise EnvironmentFault(said)

    async def calls(
        self, source: str, entry: str, calls: Sequence[Sequence[Any]], limits: SandboxLimits | None = None
    ) -> list[CallResult]:
        limits = limits or SandboxLimits()
        for arguments in calls:
            if not is_plain(list(arguments)):
                raise UserError(f"an argument of a sandboxed call is no plain value: {repr(arguments)[:200]}")
        encoded = [encode(list(arguments), messages.MOST_BYTES) for arguments in calls]
        request = {"source": source, "entry": entry, "calls": encoded, "limits": limits.model_dump()}
        found = await self.ask("POST", "/calls", request, seconds=limits.wall_seconds)
        results = [self._read(messages.call_of, item) for item in found.get("results", ())]
        if len(results) != len(calls):
            raise EnvironmentFault(f"the sandbox server {self.url} gave {len(results)} results for {len(calls)} calls")
        return results

    async def check(self, source: str, entry: str, tests: str, limits: SandboxLimits | None = None) -> CallResult:
        limits = limits or SandboxLimits()
        request = {"source": source, "entry": entry, "tests": tests, "limits": limits.model_dump()}
        found = await self.ask("POST", "/check", request, seconds=limits.wall_seconds)
        result: CallResult = self._read(messages.call_of, found)
        return result

    async def unit_tests(
        self, source: str, tests: str, limits: SandboxLimits | None = None, *, module: str = "solution"
    ) -> list[TestResult]:
        limits = limits or SandboxLimits()
        request = {"source": source, "tests": tests, "module": module, "limits": limits.model_dump()}
        found = await self.ask("POST", "/unit_tests", request, seconds=limits.wall_seconds)
        return [self._read(messages.test_of, item) for item in found.get("results", ())]

    async def run_program(self, source: str, stdin: str = "", limits: SandboxLimits | None = None) -> ExecResult:
        limits = limits or SandboxLimits()
        request = {"source": source, "stdin": stdin, "limits": limits.model_dump()}
        found = await self.ask("POST", "/run", request, seconds=limits.wall_seconds)
        result: ExecResult = self._read(messages.exec_of, found)
        return result

    def _read(self, read: Any, data: Any) -> Any:
        try:
            return read(data)
        except (ValueError, KeyError, TypeError) as problem:
            raise EnvironmentFault(f"the sandbox server {self.url} gave a result that is none: {problem!r}") from None

    async def open_session(
        self, limits: SandboxLimits | None = None, *, snapshot: Snapshot | None = None
    ) -> "RemoteSession":
        limits = limits or SandboxLimits()
        request: dict[str, Any] = {"limits": limits.model_dump()}
        if snapshot is not None:
            request["snapshot"] = messages.packed(snapshot.archive)
        found = await self.ask("POST", "/sessions", request)
        return RemoteSession(self, str(found["id"]), str(found["home"]), limits)

    async def self_test(self) -> list[Probe]:
        found = await self.ask("POST", "/self_test", {}, seconds=120.0)
        return [Probe(**probe) for probe in found["probes"]]


class RemoteSession(Session):
    """A session on a server, which ends it when nobody has used it for a while."""

    def __init__(self, sandbox: RemoteSandbox, name: str, home: str, limits: SandboxLimits) -> None:
        self.limits, self.home, self.ended = limits, home, ""
        self._sandbox, self._path = sandbox, f"/sessions/{quote(name)}"

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        wall_seconds: float | None = None,
    ) -> ExecResult:
        given = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else bytes(stdin)
        request = {
            "argv": list(argv), "stdin": messages.packed(given), "env": dict(env or {}), "cwd": cwd,
            "wall_seconds": wall_seconds,
        }  # fmt: skip
        seconds = self.limits.wall_seconds if wall_seconds is None else wall_seconds
        result: ExecResult = self._sandbox._read(messages.exec_of, await self._ask("exec", request, seconds))
        return result

    async def attach(self, argv: Sequence[str], terminal: int, env: Mapping[str, str]) -> ExecResult:
        raise SessionError("a session of a server has no terminal: use exec")

    async def _ask(self, what: str, request: Mapping[str, object], seconds: float = 60.0) -> dict[str, Any]:
        found = await self._sandbox.ask("POST", f"{self._path}/{what}", request, seconds=seconds)
        self.ended = str(found.get("ended", ""))
        return found

    async def kill(self) -> None:
        await self._ask("kill", {})

    async def write(self, path: str, data: str | bytes, *, executable: bool = False) -> None:
        given = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
        await self._ask("write", {"path": path, "data": messages.packed(given), "executable": executable})

    async def read(self, path: str, *, most_kb: int | None = None) -> bytes:
        return messages.unpacked((await self._ask("read", {"path": path, "most_kb": most_kb}))["data"])

    async def snapshot(self) -> Snapshot:
        return Snapshot(messages.unpacked((await self._ask("snapshot", {}))["data"]))

    async def restore(self, snapshot: Snapshot) -> None:
        await self._ask("restore", {"data": messages.packed(snapshot.archive)})

    async def close(self) -> None:
        try:
            await self._sandbox.ask("DELETE", self._path)
        except SessionError:  # the server has ended it already
            self.ended = self.ended or "the server has ended it"
