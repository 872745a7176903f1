"""Leases: readers keep the files of a generation.

A reader holds a shared lock (flock) on the manifest that it opened. `manifest.json` and the file of its generation are
two names of one file, so the lock holds for both. The kernel releases the lock when the reader's process ends, and when
all child processes that inherited it have ended. On a file system without locks or hard links there is no lease: a
reader whose files were removed gets an error.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from gear_data.common.file_lock import remove_unlocked
from gear_data.storage.generations.growth import GENERATIONS


class Lease:
    """Keeps the files of a generation until it dies.

    Args:
        path: the manifest, which is open.
        descriptor: of the manifest.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def is_current(self) -> bool:
        """Returns whether the path still names the locked file."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            return False


def take_lease(path: Path) -> Lease | None:
    """Returns a lease of a manifest; None if the file is missing, or another process is removing it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    lease = Lease(path, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None  # only who removes it locks it so: without the lock, the lease would keep nothing
    except OSError:
        pass  # a file system without locks
    # The publisher may have removed the file before this process had the lock.
    return lease if lease.is_current() else None


def remove_unread(folder: Path, newest: int) -> list[int]:
    """Removes the manifests of generations that nobody reads.

    Args:
        folder: the folder of the dataset.
        newest: the newest generation, which stays.

    Returns:
        The generations that stay, ascending.
    """
    kept = []
    for path in sorted((folder / GENERATIONS).glob("*.json")):
        generation = int(path.stem) if path.stem.isdecimal() else newest
        if generation == newest or not remove_unlocked(path):
            kept.append(generation)
    return kept
