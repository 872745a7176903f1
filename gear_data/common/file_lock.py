"""A lock between processes of one machine.

The kernel releases it when its process dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_log = logging.getLogger(__name__)


def remove_unlocked(path: Path) -> bool:
    """Removes a file that no process has locked (flock). Returns whether this call removed it.

    A file that cannot be locked or removed stays, as on a file system without locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file, and creates the file if it is missing.

    Waits while another process or thread holds the lock. On a file system without locks, the block runs without one.

    Raises:
        OSError: the file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("waiting for another process to release the lock: %s", path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass
        try:
            yield
        finally:
            # Closing is not enough: a child that was forked inside the block keeps the same lock open.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
