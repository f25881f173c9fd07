"""The self-test of a sandbox: one hostile program for each property."""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

from envhub.sandbox import landlock
from envhub.sandbox.base import Probe, RunOutcome, Sandbox, SandboxLimits

_LIMITS = SandboxLimits(wall_seconds=5.0, cpu_seconds=2, memory_mb=256, output_kb=64, file_mb=1)

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
    "process limit": "import os; [os.fork() or __import__('time').sleep(9) for _ in range(64)]",
    "no trace of processes": "import ctypes; r = ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n        if r < 0: raise OSError",
    "no new namespaces": "import ctypes; r = ctypes.CDLL(None).unshare(0x10000000)\n        if r < 0: raise OSError",
}
_FILE_ATTEMPTS = {
    "no writes outside": "open(secret + '/x', 'w')",
    "host files unreadable": "open(secret + '/file')",
}
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


async def run_probes(sandbox: Sandbox) -> list[Probe]:
    """Try every property of `sandbox`; none of the programs harms the machine when a property is missing."""
    # without a private user, the process limit is approximate and reading the parent depends on the kernel's settings
    private = os.geteuid() == 0
    probes = []
    for name, body in _ATTEMPTS.items():
        result = (await sandbox.calls(_ATTEMPT.format(body=body), "f", [[None]], _LIMITS))[0]
        holds = result.value == "stopped" if result.outcome is RunOutcome.ok else result.outcome is RunOutcome.memory
        promised = private or not name.startswith(("parent's", "process limit"))
        probes.append(Probe(name, promised, holds, f"{result.outcome.value}: {result.value or result.error}"))

    ended = await sandbox.run_program("while True: pass", limits=_LIMITS.model_copy(update={"wall_seconds": 0.5}))
    probes.append(Probe("time limit", True, ended.outcome is RunOutcome.timeout, ended.outcome.value))
    ended = await sandbox.run_program("while True: print('x' * 10000)", limits=_LIMITS)
    probes.append(Probe("output cap", True, ended.outcome is RunOutcome.output_limit, ended.outcome.value))

    found = (await sandbox.calls(_ENVIRONMENT, "f", [[None]], _LIMITS))[0]
    probes.append(Probe("environment clean", True, found.value == [[], ""], repr(found.value)[:200]))
    name = f"probe-{secrets.token_hex(4)}"  # its process number means nothing outside of its namespace
    daemon = (await sandbox.calls(_DAEMON, "f", [[name]], _LIMITS))[0]
    gone = daemon.value == b"x" and not _runs(name)
    probes.append(Probe("no survivors", True, gone, f"{daemon.outcome.value}: {daemon.error}"))
    return probes + await _file_probes(sandbox)


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o777)
    file = folder / "file"
    file.touch()
    file.chmod(0o666)


async def _file_probes(sandbox: Sandbox) -> list[Probe]:
    """Promised only where the kernel has Landlock; a folder and a file that are open to every user show it."""
    promised = landlock.abi() > 0
    probes = []
    with tempfile.TemporaryDirectory() as folder:
        _open_to_all(Path(folder))
        for name, body in _FILE_ATTEMPTS.items():
            result = (await sandbox.calls(_ATTEMPT.format(body=body), "f", [[folder]], _LIMITS))[0]
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
