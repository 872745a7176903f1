"""Counters that processes of one file system share: a file for each counter.

Only the process that holds a counter's lock writes its file, so no count is lost. The total is the sum of all files.
The kernel releases the lock when the process ends; the file and its count stay, and a later process continues it.

A file has the count, the count with all bits inverted (both int64, little-endian), and the holder as JSON. A reader
that sees half of a write finds that the two numbers do not match, and reads again. The file is opened for each read and
write, so that the processes of several machines see each other's counts on a network file system.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import time
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from gear_data.common.file_lock import release, remove_unlocked
from gear_data.common.typed_json import resolved
from gear_data.errors import UnwritableError
from gear_data.recording.rate_limit.limit import Counts, RateLimit
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.writing.folder_lock import LockHolder, this_process

Side = Literal["inserted", "sampled"]
SIDES: tuple[Side, Side] = ("inserted", "sampled")

_NUMBERS = struct.Struct("<qq")
_TEXT_BYTES = 4096
_ATTEMPTS = 100

_log = logging.getLogger(__name__)


@resolved
@dataclass(frozen=True)
class CounterHolder:
    """The process that holds a counter, or held it last.

    Attributes:
        process: the process.
        limit: its rate limit.
    """

    process: LockHolder
    limit: RateLimit


@dataclass(frozen=True)
class CounterState:
    """A counter of any process.

    Attributes:
        holder: its process; None while the process starts.
        count: its count.
        is_held: whether the process runs. On a file system without locks, every counter is held.
    """

    holder: CounterHolder | None
    count: int
    is_held: bool

    def __str__(self) -> str:
        who = "a process" if self.holder is None else str(self.holder.process)
        if self.holder is not None and self.holder.process.is_here and self.holder.process.pid == os.getpid():
            who = f"this process ({self.holder.process.pid})"
        return f"{who} ({self.count}{'' if self.is_held else ', has ended'})"


class Counter:
    """A counter that this process holds.

    Takes the counter of a process that ended, if there is one, and continues its count.

    Args:
        folder: of the counters. Made if it is missing.
        side: what is counted.
        limit: of this process.

    Raises:
        StorageFullError, UnwritableError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, side: Side, limit: RateLimit) -> None:
        with typed_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self.path, lock = _take(folder, side)
            self._release = weakref.finalize(self, _release, lock, os.getpid())
            self._count = _read_count(self.path)
            text = msgspec.json.encode(CounterHolder(this_process(), limit))
            os.pwrite(lock, text, _NUMBERS.size)
            os.ftruncate(lock, _NUMBERS.size + len(text))

    def add(self, number: int) -> None:
        """Adds to the count. If the file cannot be written, the next call writes both."""
        self._count += number
        try:
            _write_count(self.path, self._count)
        except OSError as error:
            _log.warning("%s: the count is not written: %s", self.path, error.strerror or error)

    def close(self) -> None:
        """Releases the counter. Its file stays."""
        self._release()


def read_counts(folder: Path) -> Counts:
    """Returns the sums of all counters of a folder.

    Raises:
        UnwritableError: a counter is damaged.
    """
    inserted, sampled = (sum(map(_read_count, _files(folder, side))) for side in SIDES)
    return Counts(inserted, sampled)


def read_counters(folder: Path, side: Side) -> list[CounterState]:
    """Returns the counters of one side."""
    return [CounterState(_holder(path), _read_count(path), _is_held(path)) for path in _files(folder, side)]


def remove_ended(folder: Path) -> None:
    """Removes the counters of processes that have ended."""
    for side in SIDES:
        for path in _files(folder, side):
            remove_unlocked(path)


def _files(folder: Path, side: Side) -> Iterator[Path]:
    return folder.glob(f"*.{side}")


def _take(folder: Path, side: Side) -> tuple[Path, int]:
    """Returns a counter that nobody holds, and the descriptor of its lock."""
    for path in sorted(_files(folder, side)):
        if (descriptor := _locked(path, os.O_RDWR)) is not None:
            return path, descriptor
    while True:
        path = folder / f"{uuid.uuid4().hex}.{side}"
        if (descriptor := _locked(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)) is not None:
            os.pwrite(descriptor, _NUMBERS.pack(0, ~0), 0)
            return path, descriptor


def _locked(path: Path, flags: int) -> int | None:
    """Opens and locks a counter; None: another process holds it, or removed it."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        if flags & os.O_EXCL:
            return descriptor  # a file system without locks: each process has a new counter
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _release(lock: int, pid: int) -> None:
    if os.getpid() == pid:
        release(lock)
    else:
        os.close(lock)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _write_count(path: Path, count: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, _NUMBERS.pack(count, ~count), 0)
    finally:
        os.close(descriptor)


def _read_count(path: Path) -> int:
    """Returns the count of a counter; 0 if it was removed, or is being made."""
    for _ in range(_ATTEMPTS):
        data = _read(path, _NUMBERS.size)
        if len(data) < _NUMBERS.size:
            return 0
        count, inverted = _NUMBERS.unpack(data)
        if count == ~inverted:
            return int(count)
        time.sleep(0.001)
    raise UnwritableError("the counter of a rate limit is damaged", file=str(path), hint="remove the file")


def _holder(path: Path) -> CounterHolder | None:
    try:
        return msgspec.json.decode(_read(path, _TEXT_BYTES)[_NUMBERS.size :], type=CounterHolder)
    except ValueError:
        return None


def _read(path: Path, size: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)
