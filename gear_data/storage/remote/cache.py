"""Local cache of remote datasets' files.

All processes of this machine share it, and its size is limited.

A file is named by its checksum. Datasets with the same file share it, and a file that changed at its URL gets another
name. A file is locked for reading while it is used. It is locked for writing while it is fetched, so that only one of
several processes fetches it. Mappings of a removed file stay valid. The disk space is freed when the last mapping ends.
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
from typing import BinaryIO, NamedTuple

from gear_data.common.file_lock import locked, release
from gear_data.errors import CorruptShardError, InvalidArgumentError, ManifestError, UnwritableError, refuse_exhausted
from gear_data.storage.atomic import checksum, typed_write_errors
from gear_data.storage.manifest import FileEntry

_DEFAULT_BYTES = 32 << 30
_NAME = re.compile(r"xxh3-128:([0-9a-f]{32})")
_FETCHING = ".fetching"
#: With more files than this, one sixteenth of the limit is freed at once: a cache of video has hundreds of thousands.
_MANY_FILES = 4096
#: A process adds one sixteenth of the free bytes before it lists the folder again: the limit holds for sixteen
#: processes.
_PARTS = 16

_log = logging.getLogger(__name__)

#: Writes the bytes of a remote file to a local one.
Download = Callable[[BinaryIO], None]


class CachedFile(NamedTuple):
    """A file in the cache. The file to remove first is the smallest one.

    Attributes:
        is_complete: whether it was fetched whole.
        used_ns: the time of its last use, in nanoseconds since 1970.
        path: its path.
        bytes: its size.
    """

    is_complete: bool
    used_ns: int
    path: Path
    bytes: int

    def remove(self) -> bool:
        """Removes the file unless it is in use. Returns whether it is gone."""
        return _remove_unused(self.path)


class ShardCache:
    """A folder of fetched files, named by their checksums.

    Args:
        folder: cache folder. It is created when the first file is fetched.
        limit: size limit in bytes. None is 32 GiB, or half of the available disk space if that is less. Files in use
            are kept even above the limit.

    Attributes:
        folder, limit: see above.

    Raises:
        InvalidArgumentError: the limit is not a number of bytes.
    """

    def __init__(self, folder: Path, limit: int | None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidArgumentError(f"cache_bytes must be a number of bytes of at least 0, not {limit!r}")
        self.folder = folder
        self.limit = limit
        self._files = folder / "files"
        self._locks = folder / "locks"
        #: Bytes that this process may add before it lists the folder again.
        self._room = 0

    @contextmanager
    def use(
        self, entry: FileEntry, download: Download, name: str, is_sound: Callable[[Path], bool] | None = None
    ) -> Iterator[Path]:
        """Yields the path of a cached file. The file is not removed while the block runs.

        Args:
            entry: the file.
            download: writes the file's bytes. It is called if the file is not cached.
            name: URL of the file, for messages.
            is_sound: returns whether a file has the right bytes. None: its checksum must be the checksum of `entry`.

        Raises:
            CorruptShardError: two downloads failed the checksum of the manifest.
            StorageFullError: the disk is full.
            UnwritableError: the cache folder cannot be written to, or the file cannot be read.
            Exception: raised by `download`.
        """
        path, fetched = self._path(entry), False
        while (descriptor := _open_locked(path)) is None:
            self._fetch(path, entry, download, name, is_sound)
            fetched = True
        try:
            _mark_used(path)
            yield path
        finally:
            release(descriptor)
            if fetched:
                # The cache may be above its limit: after several fetches at once, or a file larger than the limit.
                with typed_write_errors(path), locked(self._locks / "room"):
                    self._make_room(0)

    def holds(self, entry: FileEntry) -> bool:
        """Returns whether a file is cached."""
        return self._path(entry).exists()

    def mark_used(self, entry: FileEntry) -> bool:
        """Marks a file as used now, and returns whether it is cached.

        The least recently used file is removed first.
        """
        return _mark_used(self._path(entry))

    def _path(self, entry: FileEntry) -> Path:
        match = _NAME.fullmatch(entry.checksum)
        if match is None:
            raise ManifestError(
                f"the checksum {entry.checksum!r} is not of the form xxh3-128:HEX",
                file=entry.file,
                hint="restore manifest.json, or convert again",
            )
        return self._files / match[1]

    def _fetch(
        self, path: Path, entry: FileEntry, download: Download, name: str, is_sound: Callable[[Path], bool] | None
    ) -> None:
        with typed_write_errors(path):
            self._files.mkdir(parents=True, exist_ok=True)
            self._locks.mkdir(exist_ok=True)
            # Files whose names share two digits share a lock. Lock files cannot be removed while processes may wait
            # for them, so their number must not grow with the number of files.
            with locked(self._locks / path.name[:2]):
                # Another process may have fetched the file while this one waited for the lock.
                if not path.exists():
                    self._fetch_checked(path, entry, download, name, is_sound)

    def _fetch_checked(
        self, path: Path, entry: FileEntry, download: Download, name: str, is_sound: Callable[[Path], bool] | None
    ) -> None:
        mark = f".{os.getpid()}-{threading.get_ident()}{_FETCHING}"
        with self._reserved(path.with_name(path.name + mark), entry.bytes) as (temporary, file):
            for _ in range(2):
                file.seek(0)
                download(file)
                file.flush()
                found = checksum(temporary) if is_sound is None else "not of the packets in the index"
                if found == entry.checksum or (is_sound is not None and is_sound(temporary)):
                    # Later processes trust the name. After a crash, the file must not have its name without its data.
                    os.fsync(file.fileno())
                    os.replace(temporary, path)
                    return
        raise CorruptShardError(
            f"its checksum is {found}, the manifest says {entry.checksum}; it was fetched twice",
            file=name,
            hint="the file at the URL was changed: restore it, or convert again",
        )

    @contextmanager
    def _reserved(self, temporary: Path, size: int) -> Iterator[tuple[Path, BinaryIO]]:
        """Creates a file of `size` bytes after making room for it.

        Removes it at the end if it was not renamed.
        """
        with locked(self._locks / "room"):
            self._make_room(size)
            file = temporary.open("w+b")
            # Locked before other processes can see the file. An unlocked file belongs to a process that died.
            _lock(file.fileno(), fcntl.LOCK_EX)
            os.truncate(temporary, size)
        try:
            yield temporary, file
        finally:
            temporary.unlink(missing_ok=True)
            _lock(file.fileno(), fcntl.LOCK_UN)
            file.close()

    def _make_room(self, size: int) -> None:
        """Removes unused files until `size` more bytes fit, or only used files remain.

        The least recently used file is removed first.
        """
        if self._room and size <= self._room:
            self._room -= size
            return
        entries = self.files()
        total = sum(file.bytes for file in entries)
        limit = self.limit
        if limit is None:
            limit = min(_DEFAULT_BYTES, (shutil.disk_usage(self._files).free + total) // 2)
        if size > limit > 0:
            _log.warning(
                "%s: the limit of %d bytes is smaller than a file of %d bytes, which will be fetched often; "
                "raise cache_bytes",
                self.folder,
                limit,
                size,
            )
        many = len(entries) > _MANY_FILES
        most = limit - limit // _PARTS if many and total + size > limit else limit
        for file in sorted(entries):
            if file.is_complete and total + size <= most:
                break
            if file.remove():
                total -= file.bytes
        self._room = max(0, limit - total - size) // _PARTS

    def files(self) -> list[CachedFile]:
        """Returns the files in the cache, in any order."""
        entries: list[CachedFile] = []
        with suppress(FileNotFoundError):
            for path in self._files.iterdir():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    entries.append(CachedFile(path.suffix != _FETCHING, status.st_mtime_ns, path, status.st_size))
        return entries


def default_folder() -> Path:
    """Returns the default cache folder.

    It is $GEAR_DATA_CACHE, or `gear-data` in the user's cache folder.
    """
    folder = os.environ.get("GEAR_DATA_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gear-data")


def _mark_used(path: Path) -> bool:
    """Sets the time of a file to now. Returns whether the file exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # a file, or a cache, that only others can write
    return True


def _open_locked(path: Path) -> int | None:
    """Opens a file and locks it for reading.

    Returns its descriptor; None if it does not exist.

    Raises:
        OpenFilesError: this process has reached its limit of open files.
        UnwritableError: the system refuses, such as for a file that only another user may read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse_exhausted(error, str(path))
        raise UnwritableError(
            f"cannot be read: {error.strerror}",
            file=str(path),
            hint="let this user read the cache, or set $GEAR_DATA_CACHE (cache_dir=) to another folder",
        ) from error
    _lock(descriptor, fcntl.LOCK_SH)
    if os.fstat(descriptor).st_nlink:
        return descriptor
    release(descriptor)  # removed between opening and locking
    return None


def _remove_unused(path: Path) -> bool:
    """Removes a file unless it is locked. Returns whether the file is gone."""
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
        # A file system without locks cannot tell whether the file is used. A reader that needs it fetches it again.
        path.unlink(missing_ok=True)
        return True
    finally:
        release(descriptor)


def _lock(descriptor: int, operation: int) -> None:
    # A file system without locks raises OSError. The cache then works without locks.
    with suppress(OSError):
        fcntl.flock(descriptor, operation)
