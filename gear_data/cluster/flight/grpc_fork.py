"""Timeouts of gRPC calls, and safe forks of a process that uses gRPC.

A thread cancels calls that take too long: gRPC's own timeouts apply to a whole stream, and these streams live as long
as the process. gRPC cannot be used in a child that was forked while gRPC was in use. So all connections are closed
before a fork, and opened again on their next use, in the parent and in the child.
"""

from __future__ import annotations

import atexit
import glob
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Protocol

from gear_data.common.cancellation import start_thread
from gear_data.errors import ForkedProcessError

#: Seconds between two checks of the deadlines.
_CHECK_SECONDS = 0.05
#: Names of gRPC's threads.
_GRPC_THREADS = ("event_engine", "grpc", "lifeguard", "timer_manager", "resolver")
#: Seconds that a fork waits for these threads to end, on a machine of any load. A wait in vain shows that other code of
#: the process uses gRPC. Then later forks wait less.
_GRPC_END_SECONDS, _OTHERS_END_SECONDS = 5.0, 1.0
#: The most seconds that a fork waits for gRPC's attempt to connect to a node that hangs.
_ATTEMPT_SECONDS = 20.0

_log = logging.getLogger(__name__)


class Cancellable(Protocol):
    """A call that can be cancelled from another thread."""

    def cancel(self) -> None:
        """Ends the call in the thread that waits for it."""


class Closable(Protocol):
    """An object that keeps gRPC connections open."""

    def close_idle(self) -> None:
        """Closes all connections that are not in use."""


class _DeadlineThread:
    """A thread that cancels calls whose deadline has passed.

    It starts with the first call. Its callers may be interrupted, so they use no lock that is written in Python.

    Attributes:
        calls: each call with its deadline, by `time.monotonic`. Whoever removes a call keeps it from being cancelled.
    """

    def __init__(self) -> None:
        self.calls: dict[Cancellable, float] = {}
        #: Whether the thread waits for `_wake`, or is about to.
        self._waits = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._starting = threading.Lock()
        self._has_started = False

    def add(self, call: Cancellable, seconds: float) -> None:
        self.calls[call] = time.monotonic() + seconds
        if self._waits:
            self._wake.put(None)
        if not self._has_started:
            with self._starting:
                if not self._has_started:
                    start_thread(self._run, (), "gear-data-deadlines")
                    self._has_started = True

    def _run(self) -> None:
        while True:
            self._waits = True
            if not self.calls:  # a call that is added later sees `_waits`
                self._wake.get()
            self._waits = False
            now = time.monotonic()
            for call, deadline in list(self.calls.items()):
                if deadline <= now and self.calls.pop(call, None) is not None:
                    call.cancel()
            time.sleep(_CHECK_SECONDS)


class _ForkGate:
    """A gate that is closed while the process forks.

    A fork waits until all callers have left. Each thread has a lock, which it holds while it is inside. A thread may
    enter again while it is inside, so the locks are reentrant. `with` takes and releases a lock in compiled code: an
    interrupt cannot leave the lock locked.
    """

    def __init__(self) -> None:
        self._registering = threading.Lock()
        self._locks: dict[int, threading.RLock] = {}
        self.is_closed = False
        #: Locks of threads, held while the gate is closed.
        self._held: list[threading.RLock] = []
        #: Whether gRPC may have threads, when its last failed attempt to connect ends, and how long a fork waits.
        self.has_threads = False
        self.attempts_end = -math.inf
        self.patience = _GRPC_END_SECONDS
        #: Whether a child that is forked now, or this process, has gRPC without its threads.
        self.loses_grpc = self.lost_grpc = False

    def own_lock(self) -> threading.RLock:
        """Returns the lock of the calling thread."""
        thread = threading.get_ident()
        lock = self._locks.get(thread)
        if lock is None:
            # Waits while the gate is closed.
            with self._registering:
                lock = self._locks.setdefault(thread, threading.RLock())
        return lock

    def close(self) -> None:
        self._registering.acquire()
        self.is_closed = True
        for thread, lock in self._locks.items():
            # A thread that forks is not inside, whatever its lock says.
            if thread != threading.get_ident():
                # This is soon free: every wait of a caller has a timeout.
                lock.acquire()
                self._held.append(lock)

    def open(self) -> None:
        while self._held:
            self._held.pop().release()
        self.is_closed = False
        self._registering.release()


_deadlines, _gate = _DeadlineThread(), _ForkGate()
_closables: weakref.WeakSet[Closable] = weakref.WeakSet()
#: See `process_ends`.
_ends = False


def using_grpc() -> threading.RLock:
    """Returns a context in which the process does not fork.

    All use of gRPC is in such a context. Contexts of a thread may be nested.
    """
    return _gate.own_lock()


def note_grpc_threads() -> None:
    """Says that gRPC may have threads from now on, until the next fork.

    Raises:
        ForkedProcessError: this process was forked while gRPC had threads. A call would never end.
    """
    if _gate.lost_grpc:
        raise ForkedProcessError(
            "the process was forked while a connection to a node that hangs was not closed: it cannot reach nodes",
            hint="start workers by multiprocessing_context='forkserver' or 'spawn', or replace the node",
        )
    _gate.has_threads = True


def note_failed_attempt(seconds: float) -> None:
    """Says that a call to a node failed. gRPC may still try to connect to the node, although its client is gone.

    seconds: time after which an attempt to connect fails.
    """
    _gate.attempts_end = max(_gate.attempts_end, time.monotonic() + seconds)


@contextmanager
def timeout(call: Cancellable, seconds: float) -> Iterator[None]:
    """Cancels a call if the body takes longer than `seconds`."""
    try:
        _deadlines.add(call, seconds)
        yield
    finally:
        _deadlines.calls.pop(call, None)  # compiled code, so that an interrupt cannot leave the deadline behind


def close_before_fork(closable: Closable) -> None:
    """Registers an object to be closed before every fork, and when the process ends."""
    _closables.add(closable)


def _close_all() -> None:
    for closable in list(_closables):
        closable.close_idle()


def process_ends() -> bool:
    """Returns whether the process ends. Unlike before a fork, other threads may still be inside `using_grpc`."""
    return _ends


def _close_at_exit() -> None:
    global _ends
    _ends = True
    _close_all()


def _grpc_threads_running() -> bool:
    for path in glob.iglob("/proc/self/task/*/comm"):
        with suppress(OSError), open(path) as file:
            if file.read().startswith(_GRPC_THREADS):
                return True
    return False


def _before_fork() -> None:
    # A client that is gone leaves threads for a while.
    if not len(_closables) and not _gate.has_threads:
        return
    _gate.close()
    _close_all()
    if _gate.has_threads:
        # gRPC ends its threads in the background. A child forked earlier would wait for them forever.
        now = time.monotonic()
        deadline = min(max(now, _gate.attempts_end), now + _ATTEMPT_SECONDS) + _gate.patience
        while _grpc_threads_running():
            if time.monotonic() > deadline:
                _gate.loses_grpc = deadline < _gate.attempts_end
                if not _gate.loses_grpc:
                    _log.warning("the process forks while other code in it uses gRPC: a child that uses gRPC may hang")
                    _gate.patience = _OTHERS_END_SECONDS
                break
            time.sleep(0.0005)
        # The next fork waits again for a node that hangs.
        _gate.has_threads = _gate.loses_grpc


def _after_fork_in_parent() -> None:
    _gate.loses_grpc = False
    if _gate.is_closed:
        _gate.open()


def _after_fork_in_child() -> None:
    global _deadlines, _gate
    patience, lost = _gate.patience, _gate.loses_grpc or _gate.lost_grpc
    # The child does not have the parent's thread, and the parent's locks may be held forever.
    _deadlines, _gate = _DeadlineThread(), _ForkGate()
    _gate.patience, _gate.lost_grpc = patience, lost


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_close_at_exit)
