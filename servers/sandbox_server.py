"""A sandbox for many machines, over HTTP: everything of `envhub.sandbox`, with a key, limits and the same results.

Each request is one JSON object, and so is each answer. What fails has an `error`: status 400 for a mistake of the caller,
401 for a wrong key, 404 and 409 for what a session cannot do, 500 for a fault of the sandbox, 503 where it is busy.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import Sandbox, SandboxLimits, Session, SessionError, Snapshot, messages
from envhub.sandbox.wire import decode
from envhub.servers.settings import ServerSettings

_SWEEP_SECONDS = 5.0


@dataclass
class _Open:
    """A session that is open, when it was last used, and how many requests use it now."""

    session: Session
    used: float = field(default_factory=time.monotonic)
    busy: int = 0


class _BusyError(Exception):
    """There is no room for another."""


class SandboxServer:
    """The handlers of a server. `key` empty means that anybody may ask; `largest` bounds the limits that are asked for."""

    def __init__(self, sandbox: Sandbox, key: str, settings: ServerSettings, largest: SandboxLimits) -> None:
        self.sandbox, self.settings, self.largest = sandbox, settings, largest
        self._key = key.encode()
        self._sessions: dict[str, _Open] = {}
        self._opening = self._requests = 0

    def app(self) -> web.Application:
        """The application, whose sandbox starts and ends with it."""
        made = web.Application(middlewares=[self._guarded], client_max_size=messages.MOST_BYTES)
        made.add_routes(
            [
                web.get("/health", self._health),
                web.post("/run", self._run),
                web.post("/calls", self._calls),
                web.post("/check", self._check),
                web.post("/unit_tests", self._unit_tests),
                web.post("/self_test", self._self_test),
                web.post("/sessions", self._open),
                web.delete("/sessions/{id}", self._close),
                web.post("/sessions/{id}/{what}", self._use),
            ]
        )
        made.cleanup_ctx.append(self._living)
        return made

    async def _living(self, _: web.Application) -> AsyncIterator[None]:
        await self.sandbox.start()
        sweeping = asyncio.create_task(self._sweep())
        yield
        sweeping.cancel()
        await asyncio.gather(*(item.session.close() for item in self._sessions.values()), return_exceptions=True)
        await self.sandbox.close()

    async def _sweep(self) -> None:
        """End the sessions that nobody uses any more."""
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self.settings.idle_seconds / 2))
            latest = time.monotonic() - self.settings.idle_seconds
            for name, item in list(self._sessions.items()):
                if not item.busy and item.used < latest:
                    del self._sessions[name]
                    with contextlib.suppress(EnvironmentFault):
                        await item.session.close()

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Ask for the key, keep to what there is room for, and give every failure its status."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        if self._key and not hmac.compare_digest(given, self._key):
            return _failed(401, "the key is missing or wrong")
        if self._requests >= self.settings.most_requests and request.path != "/health":
            return _failed(503, "busy: too many requests at once")
        self._requests += 1
        try:
            return await handler(request)
        except _BusyError as problem:
            return _failed(503, f"busy: {problem}")
        except SessionError as problem:
            return _failed(409, str(problem), problem.errno)
        except (UserError, _RequestError) as problem:
            return _failed(400, str(problem))
        except EnvironmentFault as problem:
            return _failed(500, str(problem))
        except web.HTTPRequestEntityTooLarge:
            return _failed(413, f"the request is larger than {messages.MOST_BYTES >> 20} MB")
        except web.HTTPException as problem:
            return _failed(problem.status, problem.reason)
        finally:
            self._requests -= 1

    # --- what can be asked for -------------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        found = {"tier": self.sandbox.tier, "sessions": len(self._sessions), "requests": self._requests - 1}
        return web.json_response(found)

    async def _run(self, request: web.Request) -> web.Response:
        given = await _read(request)
        result = await self.sandbox.run_program(_text(given, "source"), _text(given, "stdin", ""), self._limits(given))
        return web.json_response(messages.of_exec(result))

    async def _calls(self, request: web.Request) -> web.Response:
        given = await _read(request)
        try:
            calls = [decode(item) for item in given.get("calls", ())]
        except (ValueError, TypeError, RecursionError) as problem:
            raise _RequestError(f"calls: {problem}") from None
        if not all(isinstance(arguments, list) for arguments in calls):
            raise _RequestError("calls: each is a list of arguments")
        limits, source, entry = self._limits(given), _text(given, "source"), _text(given, "entry")
        results = await self.sandbox.calls(source, entry, calls, limits)  # type: ignore[arg-type]
        return web.json_response({"results": [messages.of_call(result) for result in results]})

    async def _check(self, request: web.Request) -> web.Response:
        given = await _read(request)
        source, entry, tests = (_text(given, name) for name in ("source", "entry", "tests"))
        return web.json_response(messages.of_call(await self.sandbox.check(source, entry, tests, self._limits(given))))

    async def _unit_tests(self, request: web.Request) -> web.Response:
        given = await _read(request)
        source, tests, module = (_text(given, name) for name in ("source", "tests", "module"))
        results = await self.sandbox.unit_tests(source, tests, self._limits(given), module=module)
        return web.json_response({"results": [messages.of_test(result) for result in results]})

    async def _self_test(self, _: web.Request) -> web.Response:
        return web.json_response({"probes": [asdict(probe) for probe in await self.sandbox.self_test()]})

    async def _open(self, request: web.Request) -> web.Response:
        given = await _read(request)
        limits = self._limits(given)
        snapshot = Snapshot(_bytes(given, "snapshot")) if "snapshot" in given else None
        if len(self._sessions) + self._opening >= self.settings.most_sessions:
            raise _BusyError(f"{self.settings.most_sessions} sessions are open")
        self._opening += 1
        try:
            session = await self.sandbox.open_session(limits, snapshot=snapshot)
        finally:
            self._opening -= 1
        name = secrets.token_urlsafe(16)
        self._sessions[name] = _Open(session)
        return web.json_response({"id": name, "home": session.home})

    async def _close(self, request: web.Request) -> web.Response:
        item = self._sessions.pop(request.match_info["id"], None)
        if item is None:
            return _failed(404, "no such session: it was closed, or nobody used it for too long")
        await item.session.close()
        return web.json_response({})

    async def _use(self, request: web.Request) -> web.Response:
        item = self._sessions.get(request.match_info["id"])
        if item is None:
            return _failed(404, "no such session: it was closed, or nobody used it for too long")
        given = await _read(request)
        item.busy += 1
        try:
            found = await self._used(item.session, request.match_info["what"], given)
        finally:
            item.busy -= 1
            item.used = time.monotonic()
        return web.json_response({**found, "ended": item.session.ended})

    async def _used(self, session: Session, what: str, given: dict[str, Any]) -> dict[str, Any]:
        match what:
            case "exec":
                return messages.of_exec(await self._exec(session, given))
            case "write":
                executable = given.get("executable", False) is True
                await session.write(_text(given, "path"), _bytes(given, "data"), executable=executable)
            case "read":
                most = given.get("most_kb")
                if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
                    raise _RequestError("most_kb is a number of kB")
                return {"data": messages.packed(await session.read(_text(given, "path"), most_kb=most))}
            case "snapshot":
                return {"data": messages.packed((await session.snapshot()).archive)}
            case "restore":
                await session.restore(Snapshot(_bytes(given, "data")))
            case "kill":
                await session.kill()
            case _:
                raise _RequestError(f"a session has no {what!r}; it has exec, write, read, snapshot, restore and kill")
        return {}

    async def _exec(self, session: Session, given: dict[str, Any]) -> Any:
        argv, env, wall = given.get("argv"), given.get("env", {}), given.get("wall_seconds")
        if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
            raise _RequestError("argv is a list of texts")
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise _RequestError("env is an object of texts")
        if wall is not None and not (type(wall) in (int, float) and 0 < wall <= self.largest.wall_seconds):
            raise _RequestError(f"wall_seconds is above 0 and at most {self.largest.wall_seconds:g}, not {wall!r}")
        return await session.exec(
            argv, stdin=_bytes(given, "stdin", b""), env=env, cwd=_text(given, "cwd", ""), wall_seconds=wall
        )

    def _limits(self, given: dict[str, Any]) -> SandboxLimits:
        """The limits that a request asks for. Raises for those beyond what this server gives."""
        asked = given.get("limits", {})
        try:
            limits = SandboxLimits.model_validate(asked)
        except ValidationError as problem:
            said = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.errors())
            raise _RequestError(f"limits: {said}") from None
        for name in SandboxLimits.model_fields:
            if getattr(limits, name) > getattr(self.largest, name):
                raise _RequestError(
                    f"{name} is at most {getattr(self.largest, name)} on this server, not {getattr(limits, name)}"
                )
        return limits


class _RequestError(Exception):
    """A request that is none; the message is for the caller."""


def _failed(status: int, said: str, errno: int | None = None) -> web.Response:
    return web.json_response({"error": said, **({} if errno is None else {"errno": errno})}, status=status)


async def _read(request: web.Request) -> dict[str, Any]:
    try:
        found = json.loads(await request.read())
    except (ValueError, RecursionError) as problem:
        raise _RequestError(f"the request is no JSON: {problem}") from None
    if not isinstance(found, dict):
        raise _RequestError("the request is no JSON object")
    return found


def _text(given: dict[str, Any], name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise _RequestError(f"{name} is a text" if name in given else f"{name} is missing")
    return value


def _bytes(given: dict[str, Any], name: str, default: bytes | None = None) -> bytes:
    if name not in given and default is not None:
        return default
    try:
        return messages.unpacked(given.get(name))
    except ValueError as problem:
        raise _RequestError(f"{name}: {problem}") from None


async def serve(server: SandboxServer, host: str, port: int, ready: Callable[[int], object]) -> None:
    """Serve until cancelled; `ready` is called with the port once requests are answered.

    A request whose caller has gone is cancelled, with all that runs for it. Raises UserError for an address that is taken.
    """
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as problem:
            raise UserError(f"cannot serve at {host}:{port}: {problem.strerror or problem}") from None
        ready(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
