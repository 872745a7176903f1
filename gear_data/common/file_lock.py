"""A lock between processes of one machine.

The kernel releases it when its process dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_log = logging.getLogger(__name__)


def remove_unlocked(path: Path, is_unused: Callable[[], bool] = lambda: True) -> bool:
    """Removes a file that no process has locked (flock). Returns whether this call removed it.

    A file that cannot be locked or removed stays, as on a file system without locks.

    Args:
        path: the file.
        is_unused: is called while this process holds the lock. The file stays if it returns False.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, descriptor) or not is_unused():
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        release(descriptor)
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file, and creates the file if it is missing.

    Waits while another process or thread holds the lock. On a file system without locks, the block runs without one.
    A file that is removed before it is locked is created again.

    Raises:
        OSError: the file cannot be created.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("waiting for another process to release the lock: %s", path)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                pass
            # Removed between opening and locking, the file locks nobody out: others lock a new one.
            if _is_at(path, descriptor):
                yield
                return
        finally:
            release(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Returns whether a path still leads to an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def release(descriptor: int) -> None:
    """Unlocks and closes a file."""
    # Closing is not enough: a child that was forked meanwhile keeps the same lock open.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
