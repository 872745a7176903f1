"""MappedFiles: notices that a mapped file was truncated or changed in place.

A read behind the end of a mapped file ends the process by the signal SIGBUS. So readers check the sizes of mapped
files before they read. The check is cheap, and it cannot be complete: a file may be truncated between check and read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gear_data.errors import CorruptShardError, refuse_exhausted
from gear_data.storage.atomic import checksum
from gear_data.storage.manifest import REPAIR, FileEntry

#: `MappedFiles` looks at files at most this often, in seconds. `check` looks at this many files each time.
CHECK_SECONDS, FILES_PER_CHECK = 0.1, 64

_REPAIR = f"{REPAIR}; then open the dataset again"


@dataclass(frozen=True)
class _MappedFile:
    """A file when it was mapped.

    Attributes:
        path, entry: the file.
        inode: its device and inode.
        mtime_ns: the time of the last write.
    """

    path: str
    entry: FileEntry
    inode: tuple[int, int]
    mtime_ns: int


class MappedFiles:
    """Files that this process has mapped. Thread-safe.

    A file that was replaced or removed is no concern: the mapping keeps the old file.

    Args:
        explain: called before an error is raised. It may raise an error that says more.
        times: whether a changed time means that the contents may have changed. False: the owner of the files sets
            their times.
    """

    def __init__(self, explain: Callable[[], None], *, times: bool = True) -> None:
        self._explain = explain
        self._times = times
        self._files: dict[str, _MappedFile] = {}
        self._next_time = 0.0
        self._next_file = 0
        #: When `check_file` looks at a file again.
        self._next_times: dict[str, float] = {}

    def add(self, entry: FileEntry, path: Path) -> None:
        """Records a file that was mapped just now."""
        try:
            status = path.stat()
        except FileNotFoundError:  # removed already: nobody can truncate it
            return
        self._files[entry.file] = _MappedFile(str(path), entry, (status.st_dev, status.st_ino), status.st_mtime_ns)

    def check(self) -> None:
        """Checks some of the files, if the last check is long enough ago.

        Calls take turns through all files.

        Raises:
            CorruptShardError: a file was truncated, or its contents were changed in place.
        """
        now = time.monotonic()
        if now < self._next_time:
            return
        files = list(self._files.values())
        first = self._next_file if self._next_file < len(files) else 0
        last = first + FILES_PER_CHECK
        for number, file in enumerate(files[first:last], first):
            # If this file is bad, the next call begins with it, and raises again.
            self._next_file = number
            self._check_now(file)
        self._next_file, self._next_time = last, now + CHECK_SECONDS

    def check_file(self, name: str) -> None:
        """Checks one file, if its last check by this method is long enough ago.

        A file that is not mapped is ignored.

        Args:
            name: its name in the manifest.

        Raises:
            CorruptShardError: the file was truncated, or its contents were changed in place.
        """
        file = self._files.get(name)
        if file is None:
            return
        now = time.monotonic()
        if now >= self._next_times.get(name, 0.0):
            self._check_now(file)
            self._next_times[name] = now + CHECK_SECONDS

    def _check_now(self, file: _MappedFile) -> None:
        try:
            status = os.stat(file.path)
        except OSError:
            return
        if (status.st_dev, status.st_ino) != file.inode:
            return
        if status.st_size != file.entry.bytes:
            self._explain()
            raise CorruptShardError(
                f"the file has {status.st_size} bytes now; it had {file.entry.bytes} when it was mapped",
                file=file.path,
                hint=_REPAIR,
            )
        if self._times and status.st_mtime_ns != file.mtime_ns:
            self._check_contents(file)
            self._files[file.entry.file] = replace(file, mtime_ns=status.st_mtime_ns)

    def _check_contents(self, file: _MappedFile) -> None:
        """Compares a file with its checksum, because `touch` changes only the time."""
        try:
            found = checksum(Path(file.path))
        except FileNotFoundError:
            return
        except OSError as error:
            refuse_exhausted(error, file.path)
            raise CorruptShardError(f"cannot be read: {error}", file=file.path, hint=_REPAIR) from error
        if found != file.entry.checksum:
            self._explain()
            raise CorruptShardError("the file was changed in place after it was mapped", file=file.path, hint=_REPAIR)
