"""Grades of the slot tier: how many a second on one core, and how much later than a bare fork of a warm interpreter.

A grade loads a function and makes four calls, each answered before the next is sent; in the sandbox with all that isolates
it, in the bare fork with nothing. Cold bubblewrap, where it is installed, starts an interpreter for each grade. Everything is
held to one core.

    python -m benchmarks.sandbox [--grades 300] [--at-once 4] [--rounds 2] [--json]
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

from benchmarks.measure import Row, abba_async, at_least, at_most, ratio, report
from envhub.sandbox import Sandbox, grade_function, make_sandbox

_SOURCE = "def add(a, b):\n    return a + b\n"
_TESTS = [([n, 2 * n], 3 * n) for n in range(1, 5)]
_COLD = (
    "import json, sys\nns = {}\nexec(sys.argv[1], ns)\nfor line in sys.stdin:\n"
    "    print(json.dumps(ns['add'](*json.loads(line))), flush=True)\n"
)
_BWRAP = [
    "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
    *(part for top in ("/usr", "/lib", "/lib64", "/bin") if os.path.exists(top) for part in ("--ro-bind", top, top)),
    "--tmpfs", "/tmp", "--dev", "/dev",
]  # fmt: skip


async def in_sandbox(sandbox: Sandbox) -> float:
    """Seconds of one grade."""
    begun = time.perf_counter()
    graded = await grade_function(sandbox, _SOURCE, "add", _TESTS)
    assert graded.all_passed, graded
    return time.perf_counter() - begun


def in_fork() -> float:
    """Seconds of the same in a fork of this process."""
    begun = time.perf_counter()
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        near.close()
        names: dict[str, object] = {}
        exec(_SOURCE, names)
        with far.makefile("rw") as lines:
            for line in lines:
                lines.write(json.dumps(names["add"](*json.loads(line))) + "\n")  # type: ignore[operator]
                lines.flush()
        os._exit(0)
    far.close()
    with near, near.makefile("rw") as lines:
        for arguments, expected in _TESTS:
            lines.write(json.dumps(arguments) + "\n")
            lines.flush()
            assert json.loads(lines.readline()) == expected
    near.close()
    os.waitpid(child, 0)
    return time.perf_counter() - begun


def in_cold_bubblewrap() -> float:
    """Seconds of the same in a bubblewrap that starts an interpreter."""
    begun = time.perf_counter()
    command = [
        *_BWRAP,
        sys.executable if sys.prefix == sys.base_prefix else "/usr/bin/python3",
        "-I",
        "-c",
        _COLD,
        _SOURCE,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        for arguments, expected in _TESTS:
            process.stdin.write(json.dumps(arguments) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == expected
        process.stdin.close()
    return time.perf_counter() - begun


async def rate(sandbox: Sandbox, grades: int, at_once: int) -> float:
    """Grades a second, so many at once."""
    left = iter(range(grades))

    async def work() -> None:
        for _ in left:
            await in_sandbox(sandbox)

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return grades / (time.perf_counter() - begun)


async def measure(given: argparse.Namespace) -> list[Row]:
    """All rows."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sandbox = make_sandbox("slot", given.at_once)
    await sandbox.start()

    async def added() -> float:
        return statistics.median([await in_sandbox(sandbox) for _ in range(given.grades // 4)]) * 1e3

    async def bare() -> float:
        return statistics.median([in_fork() for _ in range(given.grades // 4)]) * 1e3

    async def full() -> float:
        return await rate(sandbox, given.grades, given.at_once)

    await full()
    slot, fork = await abba_async(added, bare, given.rounds)
    one, other = await abba_async(full, full, given.rounds)
    await sandbox.close()
    rows = [
        Row("a grade in a slot", statistics.median(slot), "ms"),
        Row("a grade in a bare fork", statistics.median(fork), "ms"),
        at_most("added by the slot", statistics.median(a - b for a, b in zip(slot, fork, strict=True)), "ms", 4.0),
        Row("a slot against itself (A/A)", ratio(slot[::2], slot[1::2]), "ratio"),
        at_least(f"grades on one core, {given.at_once} at once", statistics.median(one + other), "a second", 150),
        Row("against itself (A/A)", ratio(one, other), "ratio"),
    ]
    if shutil.which("bwrap"):
        cold = statistics.median(in_cold_bubblewrap() for _ in range(max(20, given.grades // 10)))
        rows.append(Row("grades in cold bubblewrap, one after the other", 1 / cold, "a second"))
        rows.append(at_least("slots against cold bubblewrap", statistics.median(one + other) * cold, "ratio", 5.0))
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grades", type=int, default=300, help="in each measurement")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2, help="of four measurements each")
    parser.add_argument("--json", action="store_true")
    return report("sandbox", asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
