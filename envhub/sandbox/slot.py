"""The slot tier: boxes cloned from a warm process, each in process, mount and IPC namespaces of its own.

Contents, beside those of the process tier: a root that holds the interpreter and its standard library and nothing else of
the machine, no network at all, no other process in sight, a working directory in memory that `disk_mb` bounds, and no
process that outlives its box, whatever it does. Where the machine lets one make cgroups, all processes of a box together
are bounded in memory and number. Needs root and the right to make namespaces; the `userns` tier does the same for other users, in a
user namespace, without users of their own for boxes and without cgroups.
"""

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from envhub.errors import EnvironmentFault
from envhub.sandbox import leases
from envhub.sandbox.base import SandboxLimits
from envhub.sandbox.box import FOLDERS, USERS, Box, memory_file
from envhub.sandbox.cgroups import Slots
from envhub.sandbox.places import root_layout
from envhub.sandbox.process import ProcessSandbox
from envhub.sandbox.seccomp import build_filter

_SCRIPT = Path(__file__).with_name("zygote.py")
_START_SECONDS = 30.0
_RECYCLED_AFTER = 2_000  # boxes
_HOME = "/tmp"


class Zygote:
    """A process that clones boxes. Starting one takes some 50 ms. Raises `EnvironmentFault` where it cannot start.

    With `sessions` its boxes serve sessions, and show the machine's programs.
    """

    def __init__(self, *, sessions: bool = False) -> None:
        user = os.geteuid() != 0
        self.used = self.open = 0
        self._lock = threading.Lock()
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        place = tempfile.mkdtemp(
            prefix=f"{FOLDERS}-{leases.label()}-"
        )  # its root is mounted there where only the process itself sees it
        try:
            with far:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", "utf8", str(_SCRIPT), str(far.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[far.fileno()],
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            program = build_filter(signals=True).hex()
            kind = {"sessions": ["yes"] if sessions else [], "user": ["yes"] if user else []}
            users = ([os.getuid()] if user else USERS) if sessions else None
            said = self._greeted(
                {**root_layout(tools=sessions, users=users), **kind, "place": [place], "filter": [program]}
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            os.rmdir(place)
        if said != "ready":
            self.close()
            raise EnvironmentFault(said)

    def _greeted(self, layout: dict[str, list[str]]) -> str:
        """Tell the process its root; returns `ready`, or what it could not do."""
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            try:
                self._socket.settimeout(_START_SECONDS)
                self._socket.send(json.dumps(layout).encode())
                said = self._socket.recv(4096).decode("utf-8", "replace")
            except OSError as error:
                said = str(error)
            self._socket.settimeout(None)
            if said:
                return said
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else "its process ended without a word"

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def has_room(self) -> bool:
        """Whether another box may be cloned."""
        return self.used < _RECYCLED_AFTER and self.is_alive

    def take(self) -> None:
        """Count a box of it that is to be cloned."""
        with self._lock:
            self.used += 1
            self.open += 1

    def give_back(self) -> None:
        """Count a box of it that is gone."""
        with self._lock:
            self.open -= 1

    def clone(self, fds: list[int]) -> None:
        """Have a box started with these descriptors. Raises `OSError` where the process is gone."""
        socket.send_fds(self._socket, [b"box"], fds)

    def close(self) -> None:
        """Let go of the process: it ends when it has killed its boxes."""
        self._socket.close()
        try:
            self._process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class SlotBox(Box):
    """A box that a zygote clones; `_life` is at its end when all of it is gone."""

    def __init__(self, limits: SandboxLimits, zygote: Zygote, slots: Slots, *, session: bool = False) -> None:
        super().__init__(limits, slots, session=session)
        self._zygote, self._taken = zygote, True

    @property
    def home(self) -> str:
        return _HOME

    @property
    def may_kill(self) -> bool:
        return True

    def _make_place(self, uid: int | None) -> dict[str, object]:
        return {"directory": _HOME, "landlock": 0, "rules": []}

    def _spawn(self, control: socket.socket, channel: socket.socket, stdin: bytes, config: dict[str, object]) -> None:
        with self._far_ends(control, channel, stdin) as standard:
            own = {name: value for name, value in config.items() if name != "filter"}  # which its zygote has
            given = memory_file("config", json.dumps(own).encode())
            self._life, far = os.pipe()
            try:
                self._zygote.clone([control.fileno(), channel.fileno(), far, given, *standard, *self._joins()])
            except OSError as error:
                raise EnvironmentFault(f"the process that clones boxes is gone: {error}") from error
            finally:
                os.close(given)
                os.close(far)

    async def _configure(self, config: dict[str, object]) -> None:
        """It was told when it was cloned."""

    def _is_gone(self) -> bool:
        poller = select.poll()
        poller.register(self._life, select.POLLIN)
        return bool(poller.poll(0))

    def _kill(self) -> None:
        """Its zygote kills it."""

    def _release(self) -> None:
        super()._release()
        if self._taken:
            self._taken = False
            self._zygote.give_back()


class _Zygotes:
    """Zygotes of one kind: the newest clones, older ones end when the last of their boxes is gone."""

    def __init__(self, *, sessions: bool) -> None:
        self._sessions = sessions
        self._zygotes: list[Zygote] = []
        self._renewing = threading.Lock()

    async def take(self) -> Zygote:
        """One with a box of it taken. Raises `EnvironmentFault` where none can start."""
        zygote = self._ready()
        return await asyncio.to_thread(self._take) if zygote is None else zygote

    def _ready(self) -> Zygote | None:
        """The only zygote, with a box of it taken, where there is nothing to start and nothing to end."""
        if not self._renewing.acquire(blocking=False):
            return None
        try:
            if len(self._zygotes) != 1 or not self._zygotes[0].has_room:
                return None
            self._zygotes[0].take()
            return self._zygotes[0]
        finally:
            self._renewing.release()

    def _take(self) -> Zygote:
        with self._renewing:
            newest = self._zygotes[-1] if self._zygotes else None
            if newest is None or not newest.has_room:
                try:
                    self._zygotes.append(Zygote(sessions=self._sessions))
                except (EnvironmentFault, OSError) as error:
                    raise EnvironmentFault(f"no process that clones boxes can start: {error}") from error
            for old in [zygote for zygote in self._zygotes[:-1] if not zygote.open or not zygote.is_alive]:
                self._zygotes.remove(old)
                old.close()
            self._zygotes[-1].take()
            return self._zygotes[-1]

    def close(self) -> None:
        """Let go of all."""
        with self._renewing:
            zygotes, self._zygotes = self._zygotes, []
        for zygote in zygotes:
            zygote.close()


class SlotSandbox(ProcessSandbox):
    """The `slot` tier. A zygote is started with the first box, and another one after 2,000 of them or when it ends.

    Sessions have zygotes of their own, whose root shows more.
    """

    tier = "slot"
    hides_processes = True
    hides_files = True

    def __init__(self, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self._zygotes, self._session_zygotes = _Zygotes(sessions=False), _Zygotes(sessions=True)

    @classmethod
    def missing(cls) -> str:
        if missing := super().missing():
            return missing
        return cls._missing_user() or _missing_namespaces()

    @classmethod
    def _missing_user(cls) -> str:
        return "" if os.geteuid() == 0 else "needs root; take the tier userns or process"

    async def _new_box(self, limits: SandboxLimits, *, session: bool = False) -> Box:
        zygote = await (self._session_zygotes if session else self._zygotes).take()
        return SlotBox(limits, zygote, self._slots, session=session)

    async def close(self) -> None:
        await self._end_running()
        for zygotes in (self._zygotes, self._session_zygotes):
            await asyncio.to_thread(zygotes.close)
        await super().close()


class UserSlotSandbox(SlotSandbox):
    """The `userns` tier: the same for other users than root."""

    tier = "userns"

    @classmethod
    def _missing_user(cls) -> str:
        return "is for other users than root; take the tier slot" if os.geteuid() == 0 else ""


def _missing_namespaces() -> str:
    """Why no zygote can start here, to be said after a tier's name."""
    try:
        Zygote().close()
    except (EnvironmentFault, OSError) as problem:
        return f"cannot start here: {problem}"
    return ""
