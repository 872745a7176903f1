"""Processes whose file operations a supervisor sees one by one.

The supervisor lets an operation pass, lets it fail, cuts it short, or answers with SIGKILL. A seccomp filter stops each
system call that changes files and asks the supervisor (`man 2 seccomp_unotify`). It sees all threads and child
processes, and C++ code too. It takes no compiler, no privileges and no change of the program.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing.util
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38
_NEW_LISTENER = 1 << 3
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
#: Machine -> number of the system calls seccomp and pidfd_getfd.
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_PIDFD_GETFD = 438
_AT_FDCWD = -100 & 0xFFFFFFFF
#: Machine -> system call -> number, and the argument that names the file: a descriptor (fd), a path, or a
#: path at the descriptor of a folder, which is the argument before it (at).
_CALLS: dict[str, dict[str, tuple[int, str, int]]] = {
    "x86_64": {
        "write": (1, "fd", 0),
        "pwrite": (18, "fd", 0),
        "writev": (20, "fd", 0),
        "sendfile": (40, "fd", 0),
        "copy_file_range": (326, "fd", 2),
        "fsync": (74, "fd", 0),
        "fdatasync": (75, "fd", 0),
        "ftruncate": (77, "fd", 0),
        "fallocate": (285, "fd", 0),
        "open": (257, "at", 1),
        "rename": (82, "path", 1),
        "renameat2": (316, "at", 3),
        "link": (86, "path", 1),
        "mkdir": (83, "path", 0),
        "rmdir": (84, "path", 0),
        "unlink": (87, "path", 0),
        "unlinkat": (263, "at", 1),
    },
    "aarch64": {
        "write": (64, "fd", 0),
        "pwrite": (68, "fd", 0),
        "writev": (66, "fd", 0),
        "sendfile": (71, "fd", 0),
        "copy_file_range": (285, "fd", 2),
        "fsync": (82, "fd", 0),
        "fdatasync": (83, "fd", 0),
        "ftruncate": (46, "fd", 0),
        "fallocate": (47, "fd", 0),
        "open": (56, "at", 1),
        "rename": (38, "at", 3),
        "renameat2": (276, "at", 3),
        "link": (37, "at", 3),
        "mkdir": (34, "at", 1),
        "unlink": (35, "at", 1),
    },
}
#: Flags of an `open` that can change a file.
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: Seconds. A run takes about one on an idle machine, and may take a minute beside a load.
_TIME_LIMIT = 300
#: Calls that need space on the disk, with `open` of a new file; and calls that write bytes from the process's memory.
SPACE = frozenset(
    ("write", "pwrite", "writev", "sendfile", "copy_file_range", "ftruncate", "fallocate", "mkdir", "open")
)
PLAIN_WRITES = frozenset(("write", "pwrite"))


class Answer(Enum):
    """Answer to a system call, apart from an error number."""

    PASS = "pass"
    #: The main process is killed before the call, and so is the process that makes the call.
    KILL = "kill"
    #: A write writes half of its bytes.
    SHORT = "short"


@dataclass(frozen=True)
class Call:
    """One system call that changes a file below the watched folder."""

    number: int
    name: str
    file: str

    def __str__(self) -> str:
        return f"{self.name} of {self.file} (call {self.number})"


@dataclass(frozen=True)
class Ended:
    """How a supervised process ended.

    Attributes:
        status: exit status of the main process; negative for a signal.
        calls: the calls below the watched folder, of all its processes.
        orphans: whether a process was still there `PATIENCE` seconds after the main process. It was killed.
        seconds: wall time of the main process.
        output: what all of them printed.
    """

    status: int
    calls: tuple[Call, ...]
    orphans: bool
    seconds: float
    output: str


#: Seconds in which the other processes end after the main process.
PATIENCE = 20.0


@cache
def refusal() -> str | None:
    """Returns why this machine cannot supervise system calls; None if it can."""
    if platform.machine() not in _CALLS:
        return f"no table of system calls for {platform.machine()}"
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            os.close(_install_filter())
            os._exit(0)
        os._exit(1)
    return None if os.waitpid(child, 0)[1] == 0 else "the kernel refuses a seccomp listener"


def supervise(
    body: Callable[[], object],
    folder: Path,
    log: Path,
    answer: Callable[[Call], Answer | int] = lambda call: Answer.PASS,
    *,
    kill_after: float | None = None,
) -> Ended:
    """Runs `body` in a forked process, and answers its file operations.

    The calling process must have one thread. SIGALRM kills processes that run longer than `_TIME_LIMIT`.

    Args:
        body: the process exits with 0 if it returns, and with 1 and a traceback if it raises.
        folder: the folder to watch. Other files are left in peace.
        log: file for the output of the processes, outside `folder`.
        answer: returns an `Answer`, or the error number with which the call fails.
        kill_after: seconds after which the main process is killed.
    """
    sys.stdout.flush()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _run(body, log, theirs)
    theirs.close()
    started = time.monotonic()
    _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    supervisor = _Supervisor(child, listeners[0], str(folder.resolve()) + "/", answer)
    status, seconds, orphans = supervisor.run(started, kill_after)
    return Ended(status, tuple(supervisor.calls), orphans, seconds, log.read_text(errors="replace"))


def _run(body: Callable[[], object], log: Path, theirs: socket.socket) -> None:
    status = 1
    try:
        os.setsid()  # an orphan is found by its session
        signal.setitimer(signal.ITIMER_REAL, _TIME_LIMIT)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
        listener = _install_filter()
        socket.send_fds(theirs, [b"-"], [listener])
        os.close(listener)
        theirs.close()
        body()
        multiprocessing.util._exit_function()  # a process that ends as usual removes its folders
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _install_filter() -> int:
    """Installs the filter in this process, and returns the descriptor of its listener."""
    calls = _CALLS[platform.machine()]
    numbers = [number for name, (number, *_) in calls.items() if name != "open"]
    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    count = len(numbers)
    # Jumps count the instructions to skip. An `open` skips the other numbers, and its flags are tested.
    rules = [(load, 0, 0, 0), (equal, count + 1, 0, calls["open"][0])]
    rules += [(equal, count - i + 3, 0, number) for i, number in enumerate(numbers)]
    rules += [(give, 0, 0, _ALLOW), (load, 0, 0, 32), (any_bit, 1, 0, _WRITING), (give, 0, 0, _ALLOW)]
    rules += [(give, 0, 0, _NOTIFY)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", c, t, f, k) for c, t, f, k in rules))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener: int = libc.syscall(_SECCOMP[platform.machine()], 1, _NEW_LISTENER, header)
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


class _Supervisor:
    """Answers the calls of one process and its children, until all have ended."""

    def __init__(self, child: int, listener: int, prefix: str, answer: Callable[[Call], Answer | int]) -> None:
        self.calls: list[Call] = []
        self._child = child
        self._listener = listener
        self._prefix = prefix
        self._answer = answer
        self._names = {
            number: (name, kind, place) for name, (number, kind, place) in _CALLS[platform.machine()].items()
        }

    def run(self, started: float, kill_after: float | None) -> tuple[int, float, bool]:
        """Returns the status, the wall time, and whether a process had to be killed."""
        status: int | None = None
        seconds, orphans = 0.0, False
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            events = poll.poll(20)
            now = time.monotonic()
            if kill_after is not None and now > started + kill_after:
                os.kill(self._child, signal.SIGKILL)
                kill_after = None
            if status is None:
                found, code = os.waitpid(self._child, os.WNOHANG)
                if found:
                    status, seconds = os.waitstatus_to_exitcode(code), now - started
            elif not orphans and now > started + seconds + PATIENCE:
                orphans = True
                with suppress(ProcessLookupError):
                    os.killpg(self._child, signal.SIGKILL)
            for _, event in events:
                if event & select.POLLIN:
                    self._respond()
                elif status is None:
                    status = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
                    seconds = now - started
                if event & select.POLLHUP and status is not None:
                    os.close(self._listener)
                    return status, seconds, orphans

    def _respond(self) -> None:
        request = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, request)
        except OSError:  # the process was killed meanwhile
            return
        id_, pid, _, number = struct.unpack_from("QIIi", request)
        arguments = struct.unpack_from("6Q", request, 32)
        value, error, flags = 0, 0, _CONTINUE
        name, kind, place = self._names[number]
        if name == "open" and not arguments[2] & os.O_CREAT:
            name = "reopen"  # a full disk opens files that are there
        folder = arguments[place - 1] & 0xFFFFFFFF if kind == "at" else None
        file = self._file(pid, kind, arguments[place], folder)
        if file is not None and not (kind == "fd" and file.endswith(" (deleted)")):
            call = Call(len(self.calls), name, file)
            self.calls.append(call)
            match self._answer(call):
                case Answer.KILL:
                    os.kill(self._child, signal.SIGKILL)
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    return
                case Answer.SHORT if arguments[2] > 1:
                    value, flags = _write_half(pid, name, arguments), 0
                case int(number):
                    error, flags = -number, 0
        with suppress(OSError):  # killed meanwhile
            fcntl.ioctl(self._listener, _SEND, bytearray(struct.pack("QqiI", id_, value, error, flags)))

    def _file(self, pid: int, kind: str, argument: int, folder: int | None) -> str | None:
        """Returns the path of a call's file below the watched folder.

        It is None if the file is elsewhere.
        """
        try:
            if kind == "fd":
                path = os.readlink(f"/proc/{pid}/fd/{argument}")
            else:
                with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                    memory.seek(argument)
                    path = os.fsdecode(memory.read(4096).split(b"\0")[0])
                at = "cwd" if folder in (None, _AT_FDCWD) else f"fd/{folder}"
                path = os.path.join(os.readlink(f"/proc/{pid}/{at}"), path)
        except OSError:
            return None
        return path.removeprefix(self._prefix) if path.startswith(self._prefix) else None


def _write_half(pid: int, name: str, arguments: tuple[int, ...]) -> int:
    """Writes the first half of the bytes of a write, and returns their number.

    The kernel does so on a full disk.
    """
    status = Path(f"/proc/{pid}/status").read_text()  # `pid` may be a thread, which has no pidfd
    target = os.pidfd_open(int(status.partition("Tgid:")[2].split()[0]))
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, target, arguments[0], 0)
    os.close(target)
    if descriptor < 0:
        raise OSError(errno.EPERM, "the descriptor of the process cannot be taken")
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(arguments[1])
            data = memory.read(arguments[2] // 2)
        return os.pwrite(descriptor, data, arguments[3]) if name == "pwrite" else os.write(descriptor, data)
    finally:
        os.close(descriptor)
