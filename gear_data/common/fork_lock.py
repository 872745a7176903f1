"""Locks that are free in a forked child.

A child process has only the thread that forked, so no other thread could release them.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import Any

#: Not a `WeakSet`: it runs Python code when a lock dies, and an interrupt in such code is lost.
_locks: list[weakref.ref[threading.Lock]] = []
#: Guards `_locks`.
_registering = threading.Lock()
#: Locks held during the current fork.
_held: list[threading.Lock] = []
#: Locks of the package's cached properties during the current fork.
_of_properties: list[Any] = []


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
    if sys.version_info < (3, 12):
        _of_properties.extend(_locks_of_properties())
    _held.extend(lock for each in _locks if (lock := each()) is not None)
    for lock in _held:
        lock.acquire()


def _locks_of_properties() -> Iterator[Any]:
    """Yields the locks of the package's cached properties.

    In Python 3.11 each has one for all objects, which a thread holds while it computes a value. A fork does not wait
    for them: to compute a value may take a lock that the fork holds. So a child frees them. They are listed before the
    fork, because a child should not allocate: collecting garbage there would meet libraries that are not ready yet.
    """
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] == "gear_data":
            classes = [each for each in list(vars(module).values()) if isinstance(each, type)]
            for of_class in (list(vars(each).values()) for each in classes if each.__module__ == name):
                yield from (vars(value)["lock"] for value in of_class if isinstance(value, cached_property))


def _after_fork_in_child() -> None:
    for lock in _of_properties:
        lock._at_fork_reinit()
    _after_fork()


def _after_fork() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _of_properties.clear()
    _registering.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
