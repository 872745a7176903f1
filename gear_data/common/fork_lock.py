"""Locks that are free in a forked child.

A child process has only the thread that forked, so no other thread could release them.
"""

from __future__ import annotations

import os
import threading
import weakref

#: Not a `WeakSet`: it runs Python code when a lock dies, and an interrupt in such code is lost.
_locks: list[weakref.ref[threading.Lock]] = []
#: Guards `_locks`.
_registering = threading.Lock()
#: Locks held during the current fork.
_held: list[threading.Lock] = []


def fork_safe_lock() -> threading.Lock:
    """Returns a lock that no fork interrupts.

    A fork waits until no thread holds the lock, so its guarded state is consistent in the child.
    """
    lock = threading.Lock()
    with _registering:
        _locks[:] = [*(each for each in _locks if each() is not None), weakref.ref(lock)]
    return lock


def _before_fork() -> None:
    _registering.acquire()
    _held.extend(lock for each in _locks if (lock := each()) is not None)
    for lock in _held:
        lock.acquire()


def _after_fork() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _registering.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
