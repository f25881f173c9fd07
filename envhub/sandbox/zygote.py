"""The far side of the slot tier: a process that runs no candidate code, and clones one box after another from itself.

A script of its own, started with an empty environment by `python -I -S`; only the standard library is used. As root, or
with a user namespace of its own, it moves into namespaces of its own (no network) and into a read-only root that holds the interpreter and little else. Each
message on its socket is one descriptor each of `_FDS` and those of the cgroups that the box joins; it clones a worker into new process, mount and IPC namespaces,
which is the first process there, so that all of it dies with it. Where its own socket closes, everything ends.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys

MYPY = False
if MYPY:
    from envhub.sandbox.child import load_sessions, work
    from envhub.sandbox.landlock import checked
    from envhub.sandbox.worker import send
else:  # started by its path with nothing of envhub importable: the neighbour is found by the folder
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from child import load_sessions, work
    from landlock import checked
    from worker import send

    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 1 << 28, 1 << 29, 1 << 30
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_CLONE, _PIVOT_ROOT = {"x86_64": (56, 155), "aarch64": (220, 41)}.get(os.uname().machine, (0, 0))
_KEPT_FLAGS = {2: _NOSUID, 4: _NODEV, 8: _NOEXEC, 1024: 1024, 2048: 2048, 4096: 1 << 21}  # of statvfs, of mount
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 4, 24, 47, 4
_CAPABILITY_HEADER = 0x20080522  # its third version
_FDS = ("control", "channel", "life", "config", "stdin", "stdout", "stderr")
_MOST_GROUPS = 2
_INODES = 4096
HOME = "/tmp"  # of a submission, inside

_libc = ctypes.CDLL(None, use_errno=True)
_cloning = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, which the clone then holds


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    checked(_libc.mount(*arguments), f"mount of {target}")


# --- the root ------------------------------------------------------------------------------------------------------


def _become_master(uid: int, gid: int) -> None:
    """Move into a user namespace that knows this user alone, with every capability there."""
    checked(_libc.unshare(_NEWUSER), "unshare of users")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _drop_capabilities() -> None:
    """Give up every capability for good, where no change of the user does that."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, none = _CAPABILITY_HEADER.to_bytes(4, sys.byteorder) + bytes(4), bytes(24)
    checked(_libc.capset(header, none), "capset")


def _flags_of(path: str) -> int:
    """The flags of the mount that a path is on; those of another user's mount may not be taken away."""
    found = os.statvfs(path).f_flag
    return sum(flag for bit, flag in _KEPT_FLAGS.items() if found & bit)


def _bind(source: str, target: str, flags: int = _NODEV) -> None:
    """Show a folder or a file of the machine, with all that is mounted there, to be read only."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    _mount(source, target, "none", _BIND | _REC)
    _mount("none", target, "none", _REMOUNT | _BIND | _RDONLY | _NOSUID | flags | _flags_of(target))


def _enter_root(layout: "dict[str, list[str]]", place: str) -> None:
    """Move into new namespaces and a root of `tops`, without what is in `hidden`; nothing else of the machine stays."""
    if layout["user"]:
        _become_master(os.getuid(), os.getgid())
    checked(_libc.unshare(_NEWNS | _NEWUTS | _NEWIPC | _NEWNET), "unshare")
    _mount("none", "/", "none", _REC | _PRIVATE)
    os.umask(0o022)
    _mount("envhub", place, "tmpfs", _NOSUID, "size=2m,mode=0755")
    for path in layout["tops"]:
        if os.path.exists(path):
            _bind(path, place + path)
    for path in layout["links"]:
        os.makedirs(os.path.dirname(place + path), exist_ok=True)
        os.symlink(os.path.realpath(path), place + path)
    for path in layout["hidden"]:
        if os.path.isdir(place + path):
            _mount("envhub", place + path, "tmpfs", _RDONLY | _NOSUID | _NODEV, "size=4k,mode=0555")
    for name in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/dev/{name}", f"{place}/dev/{name}", 0)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{place}/dev/{name}")
    for name, text in zip(layout["texts"][::2], layout["texts"][1::2], strict=True):
        os.makedirs(os.path.dirname(place + name), exist_ok=True)
        with open(place + name, "w") as file:
            file.write(text)
    for path in (HOME, "/proc", "/old"):
        os.mkdir(place + path, 0o755)
    os.chdir(place)
    checked(_libc.syscall(_PIVOT_ROOT, b".", b"old"), "pivot_root")
    os.chdir("/")
    checked(_libc.umount2(b"/old", _DETACH), "umount of the old root")
    os.rmdir("/old")
    _mount("none", "/", "none", _REMOUNT | _BIND | _RDONLY | _NOSUID)


# --- boxes ---------------------------------------------------------------------------------------------------------


class _Job:
    """A box: its first process, the descriptor that tells its end, and what is told to the parent."""

    def __init__(self, pid: int, control: int, life: int, gate: int) -> None:
        self.pid, self.control, self.life, self.gate = pid, control, life, gate
        self.ended = os.pidfd_open(pid)
        self.stopped = False


def _clone() -> int:
    """As `os.fork`, into new process, mount and IPC namespaces; no threads may be running."""
    sys.stdout.flush()
    sys.stderr.flush()
    zero = ctypes.c_long(0)
    flags = ctypes.c_long(_NEWPID | _NEWNS | _NEWIPC | signal.SIGCHLD)
    pid = _cloning.syscall(_CLONE, flags, zero, zero, zero, zero)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    return checked(pid, "clone")


class _Inside:
    """In a box that was just cloned: its descriptors, and those by which it joins cgroups."""

    def __init__(self, fds: "dict[str, int]", groups: "list[int]") -> None:
        self.fds, self.groups = fds, groups


def _become(inside: _Inside, program: str) -> None:
    """The first process of a box: join its cgroups, take its descriptors, close all others, and run the submission.

    `program` is the filter of its system calls, in hexadecimal digits.
    """
    fds = inside.fds
    gate = fds["gate"]
    try:
        for group in inside.groups:
            os.write(group, b"0")
        names = ("stdin", "stdout", "stderr", "channel", "config", "gate")
        high = [os.dup2(fds[name], 1000 + number) for number, name in enumerate(names)]
        low = [os.dup2(fd, number, inheritable=number < 3) for number, fd in enumerate(high)]
        os.closerange(len(low), 4096)
        channel, config, gate = low[3:]
        with open(config, "rb") as file:
            file.seek(0)
            settings = {**json.load(file), "filter": program}
        limits, uid = settings["limits"], settings["uid"]
        owner = "" if uid is None else f",uid={uid},gid={uid}"
        options = f"size={limits['disk_mb']}m,nr_inodes={_INODES},mode=0700{owner}"
        _mount("envhub", HOME, "tmpfs", _NOSUID | _NODEV, options)
        # a machine that hides parts of its own /proc lets no other user than root show one
        with contextlib.nullcontext() if uid is not None else contextlib.suppress(OSError):
            _mount("envhub", "/proc", "proc", _RDONLY | _NOSUID | _NODEV | _NOEXEC, "hidepid=2,subset=pid")
        if uid is None:
            _drop_capabilities()
    except BaseException as error:  # whatever it is, the candidate must not start, and the parent must learn why
        os.write(gate, f"{type(error).__name__}: {error}".encode()[:2000])
        os._exit(1)
    work(settings, channel, gate, 0, {}, -1)


class _Boxes:
    """All boxes that run, by the descriptors that are waited for."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests
        self.poller = select.poll()
        self.poller.register(requests, select.POLLIN)
        self.jobs: dict[int, tuple[str, _Job]] = {}

    def serve(self) -> "_Inside | None":
        """Until the parent lets go; in each box that is cloned, the descriptors of that box."""
        while True:
            fd = self.poller.poll()[0][0]  # one at a time: what it does may give the numbers of others to new boxes
            if fd == self.requests.fileno():
                data, received, _, _ = socket.recv_fds(self.requests, 16, len(_FDS) + _MOST_GROUPS)
                if not data:
                    return None
                inside = self._start(dict(zip(_FDS, received, strict=False)), received[len(_FDS) :])
                if inside is not None:
                    return inside
            else:
                what, job = self.jobs[fd]
                getattr(self, f"_{what}")(job)

    def _start(self, fds: "dict[str, int]", groups: "list[int]") -> "_Inside | None":
        gate, gate_end = os.pipe()
        try:
            pid = _clone()
        except OSError as error:
            self._tell(fds["control"], {"fault": str(error)})
            for fd in (gate, gate_end, *fds.values(), *groups):
                os.close(fd)
            return None
        if pid == 0:
            return _Inside({**fds, "gate": gate_end}, groups)
        for fd in (gate_end, *groups, *(fds[name] for name in ("channel", "config", "stdin", "stdout", "stderr"))):
            os.close(fd)
        job = _Job(pid, fds["control"], fds["life"], gate)
        for fd, what in ((job.gate, "ready"), (job.control, "stop"), (job.ended, "end")):
            self.jobs[fd] = (what, job)
            self.poller.register(fd, select.POLLIN)
        return None

    def _forget(self, fd: int) -> None:
        if self.jobs.pop(fd, None):
            self.poller.unregister(fd)

    def _ready(self, job: _Job) -> None:
        """The worker let go of the gate: it is about to run the submission, or said why it cannot."""
        if job.gate < 0:
            return
        problem = os.read(job.gate, 4096).decode("utf-8", "replace")
        self._forget(job.gate)
        os.close(job.gate)
        job.gate = -1
        self._tell(job.control, {"fault": problem} if problem else {"started": True})

    def _stop(self, job: _Job) -> None:
        """The parent wants the end of it, or is gone."""
        self._forget(job.control)
        job.stopped = True
        os.kill(job.pid, signal.SIGKILL)

    def _end(self, job: _Job) -> None:
        """All processes of the box are dead: the first one was the last to be."""
        _, status, usage = os.wait4(job.pid, 0)
        self._ready(job)
        for fd in (job.ended, job.control):
            self._forget(fd)
        code = os.waitstatus_to_exitcode(status)
        reason = "stopped" if job.stopped else "ended"
        self._tell(job.control, {"reason": reason, "code": code, "cpu": usage.ru_utime + usage.ru_stime})
        for fd in (job.ended, job.control, job.life):
            os.close(fd)

    def _tell(self, control: int, data: object) -> None:
        with contextlib.suppress(OSError):  # the parent may be gone
            send(control, data)

    def kill_all(self) -> None:
        """End every box and wait for it."""
        for job in {id(job): job for _, job in self.jobs.values()}.values():
            os.kill(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)


def _main(fd: int) -> None:
    requests = socket.socket(fileno=fd)
    layout = json.loads(requests.recv(1 << 20))
    try:
        if layout["sessions"]:
            load_sessions()
        _enter_root(layout, layout["place"][0])
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except OSError as error:
        requests.send(str(error).encode()[:2000])
        return
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    compile("0", "warm", "exec")  # builds the types of syntax trees, which each box would do again
    gc.freeze()
    requests.send(b"ready")
    boxes = _Boxes(requests)
    inside = boxes.serve()
    if inside is None:
        boxes.kill_all()
    else:
        requests.detach()  # its number is another descriptor's in the box
        _become(inside, layout["filter"][0])


if __name__ == "__main__":
    _main(int(sys.argv[1]))
