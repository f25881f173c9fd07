"""The self-test of a sandbox: one hostile program for each property."""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

from envhub.errors import EnvironmentFault
from envhub.sandbox.base import Probe, RunOutcome, Sandbox, SandboxLimits
from envhub.sandbox.sessions import BoxSession

PROOF = SandboxLimits(wall_seconds=5.0, cpu_seconds=2, memory_mb=256, output_kb=64, file_mb=1)
"""The limits under which properties are tried out."""

_ATTEMPT = """
def f(secret):
    try:
        {body}
    except (OSError, MemoryError) as error:
        return "stopped"
    return "done"
"""

# name: what is tried; the property holds when that raises OSError or MemoryError
_ATTEMPTS = {
    "network closed": "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "local sockets closed": "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
    "memory limit": "bytearray(512 << 20)",
    "file size limit": "import os; h = os.open('x', os.O_CREAT | os.O_WRONLY); [os.write(h, b'x' * (1 << 20)) for _ in '12']",
    "parent's memory unreadable": f"open('/proc/{os.getpid()}/mem', 'rb')",
    "parent's environment unreadable": f"open('/proc/{os.getpid()}/environ', 'rb')",
    "parent out of reach of signals": f"import os; os.kill({os.getpid()}, 0)",
    "no trace of processes": "import ctypes; r = ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n        if r < 0: raise OSError",
    "no new namespaces": "import ctypes; r = ctypes.CDLL(None).unshare(0x10000000)\n        if r < 0: raise OSError",
    "process limit": "import os; [os.fork() or __import__('time').sleep(9) for _ in range(64)]",
}
_FILE_ATTEMPTS = {
    "no writes outside": "open(secret + '/x', 'w')",
    "host files unreadable": "open(secret + '/file')",
}
_MANY = """
import os, time
def f(_):
    kids = []
    for _ in range(4):
        kids.append(os.fork())
        if not kids[-1]:
            held = bytearray(b"x") * (64 << 20)
            time.sleep(0.3)
            os._exit(0)
    return sum(os.waitpid(kid, 0)[1] != 0 for kid in kids)
"""
_ENVIRONMENT = """
import os
def f(_):
    try:
        return [sorted(os.environ), open('/proc/self/environ').read()]
    except OSError:
        return [sorted(os.environ), ""]
"""
_DAEMON = """
import ctypes, os, time
def f(name):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
            os.write(writer, b"x")
            time.sleep(600)
        os._exit(0)
    return os.read(reader, 20)
"""


def attempts(*, hides_processes: bool) -> tuple[str, list[str]]:
    """A source whose function `f` tries the promised properties that one box shows together, and their names.

    Its result says of each, in order, whether it was `stopped`.
    """
    names = [name for name in _ATTEMPTS if _is_promised(name, hides_processes)]
    tried = [_ATTEMPT.format(body=_ATTEMPTS[name]).replace("def f(", f"def f{n}(") for n, name in enumerate(names)]
    entry = f"def f():\n    return [attempt(None) for attempt in ({''.join(f'f{n}, ' for n in range(len(names)))})]"
    return "\n".join([*tried, entry]), names


async def broken_promises(sandbox: Sandbox, *, hides_processes: bool) -> list[str]:
    """The promised properties that do not hold in a box of one submission: what is tried before its first use.

    Raises `EnvironmentFault` where it cannot run a box at all.
    """
    source, names = attempts(hides_processes=hides_processes)
    result = (await sandbox.calls(source, "f", [[]], PROOF))[0]
    if result.outcome is not RunOutcome.ok or not isinstance(result.value, list) or len(result.value) != len(names):
        raise EnvironmentFault(f"its first call ended with {result.outcome.value}: {result.error or result.value}")
    return [name for name, said in zip(names, result.value, strict=True) if said != "stopped"]


async def broken_of_session(session: BoxSession, *, hides_processes: bool) -> list[str]:
    """The same of a session's programs, of a session with the limits `PROOF`. Raises `EnvironmentFault` likewise."""
    source, names = attempts(hides_processes=hides_processes)
    result = await session.try_out(f"{source}\nprint(*f(), sep='\\n')")
    said = result.stdout.split()
    if result.outcome is not RunOutcome.ok or len(said) != len(names):
        raise EnvironmentFault(f"its first program ended with {result.outcome.value}: {result.stderr[-300:]}")
    return [name for name, word in zip(names, said, strict=True) if word != "stopped"]


def _is_promised(name: str, hides_processes: bool) -> bool:
    if name.startswith("parent's"):
        return hides_processes
    return os.geteuid() == 0 or name != "process limit"  # which is approximate without a private user


async def run_probes(sandbox: Sandbox, unbounded: str, *, hides_processes: bool, hides_files: bool) -> list[Probe]:
    """Try every property of `sandbox`; none of the programs harms the machine when a property is missing.

    `unbounded` says why it does not bound the memory of all processes together, where it does not; the other two, whether it
    promises that processes and files of the machine are out of reach.
    """
    probes = []
    for name, body in _ATTEMPTS.items():
        result = (await sandbox.calls(_ATTEMPT.format(body=body), "f", [[None]], PROOF))[0]
        holds = result.value == "stopped" if result.outcome is RunOutcome.ok else result.outcome is RunOutcome.memory
        probes.append(
            Probe(
                name,
                _is_promised(name, hides_processes),
                holds,
                f"{result.outcome.value}: {result.value or result.error}",
            )
        )

    ended = await sandbox.run_program("while True: pass", limits=PROOF.model_copy(update={"wall_seconds": 0.5}))
    probes.append(Probe("time limit", True, ended.outcome is RunOutcome.timeout, ended.outcome.value))
    ended = await sandbox.run_program("while True: print('x' * 10000)", limits=PROOF)
    probes.append(Probe("output cap", True, ended.outcome is RunOutcome.output_limit, ended.outcome.value))

    found = (await sandbox.calls(_ENVIRONMENT, "f", [[None]], PROOF))[0]
    probes.append(Probe("environment clean", True, found.value == [[], ""], repr(found.value)[:200]))
    name = f"probe-{secrets.token_hex(4)}"  # its process number means nothing outside of its namespace
    daemon = (await sandbox.calls(_DAEMON, "f", [[name]], PROOF))[0]
    gone = daemon.value == b"x" and not _runs(name)
    probes.append(Probe("no survivors", True, gone, f"{daemon.outcome.value}: {daemon.error}"))
    many = (await sandbox.calls(_MANY, "f", [[None]], PROOF.model_copy(update={"total_mb": 128})))[0]
    detail = f"{many.outcome.value}: {many.value or many.error}" + (f"; {unbounded}" if unbounded else "")
    stopped = many.outcome is RunOutcome.memory or bool(many.value)
    probes.append(Probe("memory limit of all processes together", not unbounded, stopped, detail))
    return probes + await _file_probes(sandbox, promised=hides_files)


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o777)
    file = folder / "file"
    file.touch()
    file.chmod(0o666)


async def _file_probes(sandbox: Sandbox, *, promised: bool) -> list[Probe]:
    """A folder and a file that are open to every user show it."""
    probes = []
    with tempfile.TemporaryDirectory() as folder:
        _open_to_all(Path(folder))
        for name, body in _FILE_ATTEMPTS.items():
            result = (await sandbox.calls(_ATTEMPT.format(body=body), "f", [[folder]], PROOF))[0]
            detail = f"{result.outcome.value}: {result.value or result.error}"
            if not promised:
                detail += "; this kernel has no Landlock, or it is switched off"
            probes.append(Probe(name, promised, result.value == "stopped", detail))
    return probes


def _runs(name: str) -> bool:
    """Whether a process of that name runs, here or in any namespace below."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == name:
                return True
    return False
