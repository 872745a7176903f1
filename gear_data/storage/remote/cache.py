"""Files of remote datasets kept on this machine, up to so many bytes, for all its processes.

A file is named by its checksum: datasets that hold the same file share it, and one that was changed at its URL does not
find the old one. While a file is used it is locked for reading, while it is fetched for writing, so that of several
processes one fetches it. What was mapped stays mapped when its file is removed; the disk gets it back with the mapping.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gear_data.common.file_lock import locked
from gear_data.errors import CorruptShardError, InvalidArgumentError, ManifestError
from gear_data.storage.atomic import checksum, typed_write_errors
from gear_data.storage.manifest import FileEntry

_MOST_BYTES = 32 << 30
_NAME = re.compile(r"xxh3-128:([0-9a-f]{32})")
_FETCHING = ".fetching"

_log = logging.getLogger(__name__)

Download = Callable[[BinaryIO], None]


class ShardCache:
    """A folder of fetched files, named by their checksums.

    Args:
        folder: made when the first file is fetched.
        limit: bytes that the files may have together; None is 32 GiB, or half of what the disk can give if that is
            less. What is in use at one time may be more.

    Raises:
        InvalidArgumentError: a limit that is none.
    """

    def __init__(self, folder: Path, limit: int | None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidArgumentError(f"cache_bytes must be a number of bytes, not {limit!r}")
        self.folder = folder
        self._limit = limit
        self._files = folder / "files"
        self._locks = folder / "locks"

    @contextmanager
    def use(self, entry: FileEntry, fetch: Download, name: str) -> Iterator[Path]:
        """The path of a file, which is not removed as long as the body runs.

        Args:
            fetch: writes the file's bytes; called where it is not here yet.
            name: for messages: its URL.

        Raises:
            CorruptShardError: what was fetched, and fetched again, is not what the manifest says.
            StorageFullError: the disk is full.
            UnwritableError: the folder cannot be written to.
            whatever `fetch` raises.
        """
        path, fetched = self._path(entry), False
        while (descriptor := _open_locked(path)) is None:
            self._fetch(path, entry, fetch, name)
            fetched = True
        try:
            os.utime(path)
            yield path
        finally:
            _release(descriptor)
            if fetched:
                # More than one may have come at once, or one that is larger than the limit.
                with typed_write_errors(path), locked(self._locks / "room"):
                    self._make_room(0)

    def holds(self, entry: FileEntry) -> bool:
        """Whether a file is here."""
        return self._path(entry).exists()

    def mark_used(self, entry: FileEntry) -> bool:
        """Notes that a file is in use now; the longest unused is removed first. False: it is not here."""
        try:
            os.utime(self._path(entry))
        except FileNotFoundError:
            return False
        return True

    def _path(self, entry: FileEntry) -> Path:
        found = _NAME.fullmatch(entry.checksum)
        if found is None:
            raise ManifestError(f"its checksum {entry.checksum!r} is none", file=entry.file)
        return self._files / found[1]

    def _fetch(self, path: Path, entry: FileEntry, fetch: Download, name: str) -> None:
        with typed_write_errors(path):
            self._files.mkdir(parents=True, exist_ok=True)
            self._locks.mkdir(exist_ok=True)
            # A lock for all files that begin alike: locks cannot be removed while others may wait for them, and
            # should not become as many as the files that ever were here.
            with locked(self._locks / path.name[:2]):
                # Another process may have fetched it meanwhile.
                if not path.exists():
                    self._fetch_checked(path, entry, fetch, name)

    def _fetch_checked(self, path: Path, entry: FileEntry, fetch: Download, name: str) -> None:
        mark = f".{os.getpid()}-{threading.get_ident()}{_FETCHING}"
        with self._reserved(path.with_name(path.name + mark), entry.bytes) as (temporary, file):
            for _ in range(2):
                file.seek(0)
                fetch(file)
                file.flush()
                found = checksum(temporary)
                if found == entry.checksum:
                    # The file may be read again from here after a crash: what it holds first, its name then.
                    os.fsync(file.fileno())
                    os.replace(temporary, path)
                    return
        raise CorruptShardError(
            f"its checksum is {found}, the manifest says {entry.checksum}; it was fetched twice",
            file=name,
            hint="its bytes were changed: restore it, or convert again",
        )

    @contextmanager
    def _reserved(self, temporary: Path, size: int) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file of so many bytes, for which there is room; removed afterwards if it is still there."""
        with locked(self._locks / "room"):
            self._make_room(size)
            file = temporary.open("w+b")
            # Before others look: a file that is being fetched is told by its lock from one whose process died.
            _lock(file.fileno(), fcntl.LOCK_EX)
            os.truncate(temporary, size)
        try:
            yield temporary, file
        finally:
            temporary.unlink(missing_ok=True)
            _lock(file.fileno(), fcntl.LOCK_UN)
            file.close()

    def _make_room(self, size: int) -> None:
        """Removes files, the longest unused first, till so many bytes more fit, or none is left that is not in use."""
        found = []
        for path in self._files.iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((path.suffix != _FETCHING, status.st_mtime_ns, path, status.st_size))
        total = sum(bytes_ for *_, bytes_ in found)
        limit = self._limit
        if limit is None:
            limit = min(_MOST_BYTES, (shutil.disk_usage(self._files).free + total) // 2)
        if size > limit:
            _log.warning(
                "%s: may have %d bytes, fewer than a file of %d: it is fetched often", self.folder, limit, size
            )
        for whole, _, path, bytes_ in sorted(found):
            if whole and total + size <= limit:
                return
            if _remove_unused(path):
                total -= bytes_


def default_folder() -> Path:
    """Where files are kept unless the user says otherwise."""
    own = os.environ.get("GEAR_DATA_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gear-data")


def _open_locked(path: Path) -> int | None:
    """The descriptor of a file that is locked for reading; None where there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    _lock(descriptor, fcntl.LOCK_SH)
    if os.fstat(descriptor).st_nlink:
        return descriptor
    _release(descriptor)  # it was removed before it was locked
    return None


def _remove_unused(path: Path) -> bool:
    """Removes a file unless it is locked; whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    except OSError:
        # No locks there: nobody can be asked, and what is removed while it is read is fetched again.
        path.unlink(missing_ok=True)
        return True
    finally:
        _release(descriptor)


def _lock(descriptor: int, how: int) -> None:
    # On a file system without locks nothing is held.
    with suppress(OSError):
        fcntl.flock(descriptor, how)


def _release(descriptor: int) -> None:
    # By hand: a child forked meanwhile has the same lock open.
    _lock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
