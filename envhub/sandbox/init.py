"""The first process of a session: it runs no candidate code, and starts one program after another, as the parent asks.

On the far side, confined as the programs are. Only the standard library is used. A request is one frame on the channel;
the first four bytes of it bring descriptors. Each has one reply, and none is sent before the last one was answered, but
for `kill`, which has no reply: it ends every process but this one.
"""

import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import stat
import sys
import tarfile
import termios
import time

MYPY = False
if MYPY:
    from collections.abc import Callable

    from envhub.sandbox.worker import read_exactly, receive_rest, send, write
else:  # the neighbour is found by the folder, see child.py
    from worker import read_exactly, receive_rest, send, write

_PR_SET_DUMPABLE, _PR_SET_SUBREAPER = 4, 36
_MOST_FDS = 3
_PART = 1 << 20
_NOT_FOUND, _NOT_STARTED = 127, 126  # the exit codes of shells
_CATCHABLE = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})


def serve_session(channel: int, home: str, cpu_seconds: int) -> None:
    """Answer requests until the channel closes. Paths are below `home`; each program gets `cpu_seconds` of CPU time.

    This process may have one more process than the programs, so that another can be started whatever they left running.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # no program of the same user reads its memory
    prctl(_PR_SET_SUBREAPER, 1, 0, 0, 0)
    for number in _CATCHABLE:
        signal.signal(number, signal.SIG_IGN)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _Session(channel, home, cpu_seconds, woken).serve()


class _Session:
    def __init__(self, channel: int, home: str, cpu_seconds: int, woken: int) -> None:
        self.channel, self.home = socket.socket(fileno=channel), home
        self.cpu_seconds, self.woken = cpu_seconds, woken
        self.program = 0  # its process, while one runs

    def serve(self) -> None:
        poller = select.poll()
        for fd in (self.channel.fileno(), self.woken):
            poller.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poller.poll()]
            if self.woken in ready:
                os.read(self.woken, 4096)
                self._reap()
            if self.channel.fileno() in ready and not self._answer():
                return

    def _reap(self) -> None:
        """Collect every process that ended, orphans too; the program's own end is the reply to its request."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.program:
                self.program = 0
                cpu = usage.ru_utime + usage.ru_stime
                send(self.channel.fileno(), {"code": os.waitstatus_to_exitcode(status), "cpu": cpu})

    def _answer(self) -> bool:
        """Do what the next request asks for; False where the channel is closed."""
        size, fds, _, _ = socket.recv_fds(self.channel, 4, _MOST_FDS)
        if not size:
            return False
        size += read_exactly(self.channel.fileno(), 4 - len(size))
        request = receive_rest(self.channel.fileno(), size)
        try:
            reply = getattr(self, f"_{request.pop('do')}")(*fds, **request)
        except OSError as error:
            reply = {"refused": error.strerror or str(error), "errno": error.errno}
        except (tarfile.TarError, MemoryError) as error:
            reply = {"refused": str(error) or type(error).__name__, "errno": None}
        finally:
            for fd in fds:
                os.close(fd)
        if reply is not None:
            send(self.channel.fileno(), reply)
        return True

    # --- what can be asked for -------------------------------------------------------------------------------------

    def _exec(
        self, given: int, out: int, err: int, *, argv: "list[str]", env: "dict[str, str]", cwd: str, terminal: bool
    ) -> None:
        self._fork((given, out, err), lambda: _run(argv, env, cwd, terminal=terminal))

    def _python(self, given: int, out: int, err: int, *, source: str) -> None:
        """Run Python as a program would run that this process had started."""
        self._fork((given, out, err), lambda: _interpret(source))

    def _fork(self, fds: "tuple[int, int, int]", become: "Callable[[], None]") -> None:
        self.program = os.fork()
        if not self.program:
            try:
                _detach(fds, self.cpu_seconds)
                become()
            finally:
                os._exit(_NOT_STARTED)

    def _kill(self) -> None:
        try:
            os.kill(-1, signal.SIGKILL)  # every process that may be signalled, but this one
        except ProcessLookupError:
            return

    def _sweep(self) -> "dict[str, object]":
        """Kill until none is left; orphans are children of this process."""
        while True:
            self._kill()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return {}
            time.sleep(0.001)

    def _write(self, data: int, *, path: str, mode: int) -> "dict[str, object]":
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        with open(_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb", buffering=0) as file:
            os.fchmod(file.fileno(), mode)
            _copy(data, file.fileno())
        return {}

    def _read(self, pipe: int, *, path: str) -> "dict[str, object]":
        with open(_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
            _copy(file.fileno(), pipe)
        return {}

    def _pack(self, pipe: int) -> "dict[str, object]":
        """Write all files of the home as a tar archive; what is no file, folder, link or named pipe is left out."""
        with open(pipe, "wb", closefd=False) as file, tarfile.open(fileobj=file, mode="w|") as archive:
            for name in sorted(os.listdir(self.home)):
                archive.add(os.path.join(self.home, name), name)
        return {}

    def _unpack(self, data: int) -> "dict[str, object]":
        with open(data, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            if hasattr(tarfile, "tar_filter"):  # links may lead anywhere: they cannot do more than a program here can
                archive.extraction_filter = tarfile.tar_filter
            archive.extractall(self.home)
        return {}


def _regular(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file that is no link at its end and nothing but a file; a pipe is no reason to wait. Raises OSError."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        os.close(fd)
        number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(kind) else "Not a regular file")
    return fd


def _copy(source: int, target: int) -> None:
    while part := os.read(source, _PART):
        write(target, part)


def _found(program: str, path: str) -> str:
    """A program by its name, in the folders of `path` that may be entered."""
    if "/" in program:
        return program
    places = (os.path.join(folder, program) for folder in path.split(os.pathsep) if folder)
    found = next((place for place in places if os.access(place, os.X_OK) and not os.path.isdir(place)), None)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "command not found")
    return found


def _detach(fds: "tuple[int, int, int]", cpu_seconds: int) -> None:
    """Let a new process be as one that a program starts in."""
    signal.set_wakeup_fd(-1)
    os.setsid()
    for number, fd in enumerate(fds):  # which are above 2: those have been open since the start
        os.dup2(fd, number)
    os.closerange(3, 4096)
    for number in (*_CATCHABLE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0] - 1
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _interpret(source: str) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as an interpreter does when it starts
    try:
        exec(source, {"__name__": "__main__"})
        sys.stdout.flush()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os._exit(0)


def _run(argv: "list[str]", env: "dict[str, str]", cwd: str, *, terminal: bool) -> None:
    """Become a program. Where that fails, say so as a shell does."""
    try:
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        try:
            os.chdir(cwd)
        except OSError as error:
            os.write(2, f"{cwd}: {error.strerror}\n".encode("utf-8", "surrogateescape"))
            os._exit(_NOT_STARTED)
        os.execve(_found(argv[0], env.get("PATH", "")), argv, env)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode("utf-8", "surrogateescape"))
        os._exit(_NOT_FOUND if error.errno == errno.ENOENT else _NOT_STARTED)
