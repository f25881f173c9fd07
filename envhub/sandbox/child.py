"""The far side of the process tier: a supervisor that runs no candidate code, and the worker it forks.

A script of its own, started with an empty environment by `python -I -S`; only the standard library is used.
The supervisor reads one configuration frame from its control socket, forks the worker, and reports how the worker
ended. It kills every descendant when the worker ends or the control socket closes (so also when the parent dies),
then removes the working directory. Only the worker's own socket reaches the candidate.
"""

import ctypes
import importlib
import os
import resource
import select
import sys
import time

MYPY = False
if MYPY:
    from envhub.sandbox.folders import over_quota, remove_tree, unlinked
    from envhub.sandbox.landlock import checked, make_ruleset, restrict
    from envhub.sandbox.worker import receive, run_program, send, serve, serve_tests
else:  # started by its path with nothing of envhub importable: the neighbour is found by the folder
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from folders import over_quota, remove_tree, unlinked
    from landlock import checked, make_ruleset, restrict
    from worker import receive, run_program, send, serve, serve_tests

    del sys.path[0]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_SIGKILL = 9
_KILLER_OFFSET = 1000


# --- the worker: confinement ---------------------------------------------------------------------------------------


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _load_filter(program: bytes) -> None:
    pointer = ctypes.byref(_Program(len(program) // 8, program))
    checked(_prctl(_PR_SET_SECCOMP, 2, pointer, 0, 0), "seccomp filter")


def _reach_library(handles: "dict[str, int]") -> None:
    """Let imports go through open directories where the candidate's user cannot walk to the standard library."""
    moved = {}
    for path, fd in handles.items():
        if os.access(path, os.R_OK | os.X_OK):
            os.close(fd)
        else:
            moved[path] = f"/proc/self/fd/{fd}"

    def place(path: str) -> str:
        for old, new in moved.items():
            if path == old or path.startswith(old + "/"):
                return new + path[len(old) :]
        return path

    if moved:
        sys.path[:] = [place(path) for path in sys.path]
        for module in list(sys.modules.values()):
            package_path = getattr(module, "__path__", None)
            if isinstance(package_path, list):
                package_path[:] = [place(path) for path in package_path]
        sys.path_importer_cache.clear()


def _limit(kind: int, soft: int, hard: "int | None" = None) -> None:
    allowed = resource.getrlimit(kind)[1]
    wanted = soft if hard is None else hard
    ceiling = wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed)
    resource.setrlimit(kind, (min(soft, ceiling), ceiling))


def _confine(
    config: "dict[str, object]", supervisor: int, handles: "dict[str, int]", shared: int, groups: "tuple[int, ...]"
) -> None:
    for group in groups:
        os.write(group, b"0")
        os.close(group)
    limits, uid, directory = config["limits"], config["uid"], config["directory"]
    assert isinstance(limits, dict) and isinstance(directory, str)
    rules, version = config["rules"], config["landlock"]
    assert isinstance(rules, list) and isinstance(version, int)
    # made before the user changes, who may not be able to walk to these places
    rulesets = [shared, make_ruleset(version, rules)] if version else []
    os.setsid()
    os.chdir(directory)
    os.umask(0o077)
    if isinstance(uid, int):
        os.setgroups([])
        os.setresgid(uid, uid, uid)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, limits["file_mb"] << 20)
    _limit(resource.RLIMIT_NOFILE, limits["open_files"])
    _limit(resource.RLIMIT_NPROC, limits["processes"])
    if isinstance(uid, int):
        os.setresuid(uid, uid, uid)
    checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    checked(_prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "parent-death signal")
    if os.getppid() != supervisor:
        os._exit(1)
    for ruleset in rulesets:
        restrict(ruleset)
    _load_filter(bytes.fromhex(str(config["filter"])))
    _reach_library(handles)
    os.environ.clear()
    # data instead of address space, of which some runtimes reserve far more than they use, where all is bounded together
    _limit(resource.RLIMIT_DATA if config["bounded"] else resource.RLIMIT_AS, limits["memory_mb"] << 20)
    if not config["session"]:
        _limit(resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1)


def work(
    config: "dict[str, object]", channel: int, gate: int, supervisor: int, handles: "dict[str, int]", shared: int,
    groups: "tuple[int, ...]" = (),
) -> None:  # fmt: skip
    """Confine this process, which joins its cgroups by the descriptors `groups`, and run what the configuration says."""
    try:
        _confine(config, supervisor, handles, shared, groups)
        limits = config["limits"]
        assert isinstance(limits, dict)
        source, entry, budget = str(config["source"]), config["entry"], int(limits["result_kb"]) << 10
        session = (str(config["directory"]), int(limits["cpu_seconds"])) if config["session"] else None
        os.close(gate)
    except BaseException as error:  # whatever it is, the candidate must not start, and the parent must learn why
        os.write(gate, f"{type(error).__name__}: {error}".encode()[:2000])
        os._exit(1)
    names = config["names"]
    config.clear()
    if session is not None:
        try:
            sys.modules["init"].serve_session(channel, *session)
        finally:
            os._exit(0)
    if entry is None and names is None:
        return run_program(channel, source)
    try:
        if isinstance(names, list):
            serve_tests(channel, source, names)
        else:
            serve(channel, source, str(entry), budget)
    finally:
        os._exit(0)


def load_sessions() -> None:
    """Import what serves sessions, which a confined process cannot find."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    importlib.import_module("init")
    del sys.path[0]


# --- the supervisor ------------------------------------------------------------------------------------------------


def _descendants() -> "list[int]":
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _kill_user(uid: int) -> None:
    """Kill every process of a slot's user, from a process that this user may not signal."""
    killer = os.fork()
    if killer == 0:
        try:
            os.setresuid(uid + _KILLER_OFFSET, uid, uid + _KILLER_OFFSET)
            os.kill(-1, _SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(killer, 0)


def _kill_everything(uid: "int | None") -> None:
    """Kill and reap every descendant; orphans come back to the supervisor, so none is left when no child is."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if uid is not None:
            _kill_user(uid)
        for pid in [] if uid is not None else _descendants():
            try:
                os.kill(pid, _SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.001)


def _watch(control: int, worker: int, directory: str, megabytes: int) -> str:
    """Wait until the worker ends, the parent lets go, or the files outgrow their limit; says which."""
    ended, device = os.pidfd_open(worker), os.stat(directory).st_dev
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(ended, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poller.poll(200)]
        if ended in ready:
            return "ended"
        if control in ready:
            return "stopped"
        if over_quota(directory, megabytes, unlinked(_descendants(), device)):
            return "disk"


def _supervise(control: int, channel: int, shared: int, *groups: int) -> None:
    """`shared` is the ruleset that all submissions are held to, beside one of their own; -1 without Landlock.

    The worker joins its cgroups by the descriptors `groups`.
    """
    config = receive(control)
    limits, directory, uid = config["limits"], str(config["directory"]), config["uid"]
    assert isinstance(limits, dict) and (uid is None or isinstance(uid, int))
    if config["session"]:
        load_sessions()
    _prctl(_PR_SET_SUBREAPER, 1, 0, 0, 0)
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    handles = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in sys.path if os.path.isdir(path)}
    supervisor = os.getpid()
    gate, gate_end = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(control)
        os.close(gate)
        return work(config, channel, gate_end, supervisor, handles, shared, groups)
    reason, code, cpu = "ended", 0, 0.0
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for fd in (channel, gate_end, *handles.values(), *groups):
            os.close(fd)
        problem = os.read(gate, 4096).decode("utf-8", "replace")
        send(control, {"fault": problem} if problem else {"started": True})
        reason = _watch(control, worker, directory, limits["disk_mb"])
        if reason != "ended":
            os.kill(worker, _SIGKILL)
        _, status, usage = os.wait4(worker, 0)
        code, cpu = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    finally:
        _kill_everything(uid)
        remove_tree(directory)
    send(control, {"reason": reason, "code": code, "cpu": cpu})
    os._exit(0)


if __name__ == "__main__":
    _supervise(*map(int, sys.argv[1:]))
