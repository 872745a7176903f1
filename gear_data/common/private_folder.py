"""Folders for temporary files that no other user can read or fill."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path

from gear_data.errors import StorageFullError, UnwritableError, is_disk_full, refuse_exhausted

_SCRATCH = "gear-data-scratch-"
#: Names that `tempfile.mkdtemp` makes of `_SCRATCH`.
_SCRATCH_NAME = re.compile(rf"{_SCRATCH}[a-z0-9_]{{8}}")


def user_folder(name: str, base: str | None = None) -> Path:
    """Creates or finds the folder `NAME-UID`, which all processes of this user share.

    Args:
        name: start of the folder's name.
        base: parent folder; None is the system's folder for temporary files.

    Raises:
        PermissionError: the folder exists, and another user owns it or may open it.
        OSError: the folder cannot be created.
    """
    user = os.geteuid()
    folder = Path(base or tempfile.gettempdir(), f"{name}-{user}")
    folder.mkdir(0o700, exist_ok=True)
    # `lstat`, because `stat` follows a symbolic link that another user could have placed here.
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == user and status.st_mode & 0o777 == 0o700:
        return folder
    raise PermissionError(f"{folder} is not a private folder of this user: remove it, or give it mode 0700")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Provides a new folder that only this process uses.

    It is removed at the end. If the process is killed, the next process that needs such a folder removes it.

    Raises:
        StorageFullError, UnwritableError: the folder cannot be created.
    """
    folder, lock = _create_scratch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def process_folder() -> Path:
    """Creates a folder that only this process uses.

    It is removed when the process exits, or as `scratch_folder` is if the process is killed.
    """
    folder, _ = _create_scratch()
    # Unlike atexit, Finalize runs in multiprocessing's children. It does not run in other forked children, which do
    # not own the folder.
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=0)
    return folder


class OwnedFolder:
    """A new folder of this process. It is removed when the object is no longer used, or as `process_folder` is.

    Attributes:
        path: the folder.

    Raises:
        StorageFullError, UnwritableError: the folder cannot be created.
    """

    def __init__(self) -> None:
        self.path, lock = _create_scratch()
        self.remove = Finalize(self, _removed, (self.path, lock), exitpriority=0)


def _removed(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _create_scratch() -> tuple[Path, int]:
    """Creates a scratch folder and locks it.

    Returns the folder and the descriptor of its lock. The kernel releases the lock when the process ends. So a
    folder that is not locked belongs to no process.
    """
    try:
        return _locked_scratch()
    except OSError as error:
        refuse_exhausted(error, _SCRATCH)
        kind = StorageFullError if is_disk_full(error) else UnwritableError
        raise kind(
            f"a folder for temporary files cannot be made: {error}",
            hint="free some space, or name another folder in the environment variable TMPDIR",
        ) from error


def _locked_scratch() -> tuple[Path, int]:
    _remove_abandoned()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
        with suppress(FileNotFoundError):  # another process removed it before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without locks, where nobody removes the folder
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def _remove_abandoned() -> None:
    """Removes the scratch folders of processes of this user that were killed."""
    for entry in os.scandir(tempfile.gettempdir()):
        if not _SCRATCH_NAME.fullmatch(entry.name):
            continue
        with suppress(OSError):  # a link, removed meanwhile, locked by its owner, or another user's
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(lock)
