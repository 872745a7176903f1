"""Limits of waiting, and of forking, for calls that go through gRPC.

A call that waits too long is cancelled from a thread of its own: gRPC's own limits are of a whole stream, and these
streams live as long as the process. And gRPC cannot be used in a child that was forked while it was in use, so that
before a fork everything is closed, and opened again when it is next needed, in parent and child.
"""

from __future__ import annotations

import atexit
import glob
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

#: Seconds between two looks at who waits too long.
_LOOK = 0.05
#: What gRPC's threads are called, and for how long a fork waits for their end.
_GRPC_THREADS = ("event_engine", "grpc", "lifeguard", "timer_manager", "resolver")
_GRPC_END_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Cancellable(Protocol):
    """A call."""

    def cancel_late(self) -> None:
        """Ends the call, in whatever thread waits for it. It waited too long."""


class Closable(Protocol):
    """What holds gRPC open."""

    def close_idle(self) -> None:
        """Closes all that is not in use."""


class _Watch:
    """Cancels what waits too long."""

    def __init__(self) -> None:
        self._due: dict[Cancellable, float] = {}
        self._some = threading.Event()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, call: Cancellable, seconds: float) -> None:
        self._due[call] = time.monotonic() + seconds
        if not self._some.is_set():
            self._some.set()
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="gear-data-watch", daemon=True)
                    self._thread.start()

    def remove(self, call: Cancellable) -> None:
        self._due.pop(call, None)

    def _run(self) -> None:
        while True:
            self._some.wait()
            now = time.monotonic()
            for call, due in list(self._due.items()):
                if due <= now and self._due.pop(call, None) is not None:
                    call.cancel_late()
            if not self._due:
                self._some.clear()
                if self._due:  # added meanwhile
                    self._some.set()
            time.sleep(_LOOK)


class _Gate:
    """Shut while the process forks; a fork waits till all have left."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._shut = False
        #: Since the last fork.
        self.was_used = False

    def enter(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1
            self.was_used = True

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            self._shut = True
            # They leave soon: all that they wait for has a limit.
            while self._inside:
                self._changed.wait()

    def open(self) -> None:
        with self._changed:
            self._shut = False
            self._changed.notify_all()


_watch, _gate = _Watch(), _Gate()
_closables: weakref.WeakSet[Closable] = weakref.WeakSet()


@contextmanager
def using_grpc() -> Iterator[None]:
    """All use of gRPC is in here; no process forks meanwhile. Not to be nested."""
    _gate.enter()
    try:
        yield
    finally:
        _gate.leave()


@contextmanager
def limited(call: Cancellable, seconds: float) -> Iterator[None]:
    """Cancels the call if the body takes longer."""
    _watch.add(call, seconds)
    try:
        yield
    finally:
        _watch.remove(call)


def close_before_fork(closable: Closable) -> None:
    """Has it closed before every fork, as long as it lives, and when the process ends."""
    _closables.add(closable)


def _close_all() -> None:
    for closable in list(_closables):
        closable.close_idle()


def _grpc_threads() -> bool:
    """Whether any of gRPC's threads is there still, by the names that it gives them."""
    for path in glob.iglob("/proc/self/task/*/comm"):
        with suppress(OSError), open(path) as file:
            if file.read().startswith(_GRPC_THREADS):
                return True
    return False


def _before_fork() -> None:
    if not len(_closables):
        return
    _gate.shut()
    _close_all()
    if _gate.was_used:
        # gRPC ends its threads behind its callers' backs; a child made before that waits for them for ever.
        limit = time.monotonic() + _GRPC_END_SECONDS
        while _grpc_threads():
            if time.monotonic() > limit:
                _log.warning("this process forks while something in it uses gRPC: the child may hang if it does too")
                break
            time.sleep(0.0005)
        _gate.was_used = False


def _after_fork_in_parent() -> None:
    _gate.open()


def _after_fork_in_child() -> None:
    global _watch, _gate
    # The old ones' thread is not in the child, and their locks may be held for ever.
    _watch, _gate = _Watch(), _Gate()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_close_all)
