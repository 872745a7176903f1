"""Locks that no fork finds held: a forked child has none of the threads that would let go of them."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_making = threading.Lock()
#: Held for the fork under way.
_held: list[threading.Lock] = []


def fork_safe_lock() -> threading.Lock:
    """A lock; forking waits until no thread holds it, so that what it guards is whole in the child."""
    lock = threading.Lock()
    with _making:
        _locks.add(lock)
    return lock


def _before_fork() -> None:
    _making.acquire()
    _held.extend(_locks)
    for lock in _held:
        lock.acquire()


def _after_fork() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _making.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
