"""A lock between processes of one machine, which the kernel takes back from a process that dies."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file, which is made if it is not there; waits while another process or thread holds it.

    On a file system without locks it holds nothing.

    Raises:
        OSError: the file cannot be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("waiting for another process: %s", path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass
        try:
            yield
        finally:
            # By hand: a child forked meanwhile has the same lock open.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
