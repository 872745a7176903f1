"""Heartbeats: the lock of a folder on a file system without `flock`.

A process holds the lock if it made the lock file: only one process can make a file that does not exist. While it
lives, it renews the file's time. A file whose time is old is of a process that died: another process removes the file,
and makes its own. If the first process was only stopped, its next check says that the file is another one.

Times are compared with a new file of the same file system, and not with a clock of this machine.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_BEAT_SECONDS = 5.0
#: The holder of a lock that was not renewed for so long has died.
STALE_SECONDS = 60.0


class Heartbeat:
    """Renews the time of a lock file, until `stop`.

    Args:
        lock: descriptor of the lock file, which stays open until `stop`.
    """

    def __init__(self, lock: int) -> None:
        self._lock = lock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gear-data-lock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread.is_alive():  # not in a forked child
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_BEAT_SECONDS):
            with suppress(OSError):  # the next one may succeed; else others take the lock, and a check says so
                os.utime(self._lock)


def is_stale(place: int, lock: int) -> bool:
    """Returns whether nobody renewed a lock file for long.

    Args:
        place: descriptor of its folder.
        lock: its descriptor.
    """
    name = f".clock-{os.getpid()}-{threading.get_ident()}"
    try:
        clock = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=place)
    except OSError:
        return False
    try:
        os.utime(clock)
        return os.fstat(clock).st_mtime - os.fstat(lock).st_mtime > STALE_SECONDS
    except OSError:  # the holder removed its file
        return False
    finally:
        os.close(clock)
        with suppress(OSError):
            os.unlink(name, dir_fd=place)


def remove_stale(place: int, lock: int, name: str) -> None:
    """Removes the lock file of a process that died, unless another process did so.

    Args:
        place: descriptor of its folder.
        lock: its descriptor.
        name: its name in the folder.
    """
    aside = f"{name}.{os.getpid()}-{threading.get_ident()}"
    with suppress(OSError):  # another process was faster
        if not os.path.samestat(os.stat(name, dir_fd=place), os.fstat(lock)):
            return
        os.rename(name, aside, src_dir_fd=place, dst_dir_fd=place)
        if os.path.samestat(os.stat(aside, dir_fd=place), os.fstat(lock)):
            os.unlink(aside, dir_fd=place)
        else:  # the file of the faster process
            os.rename(aside, name, src_dir_fd=place, dst_dir_fd=place)
