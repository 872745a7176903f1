"""The lock of a folder that one process at a time may write.

The lock file is in a folder of its own, such as `DATASET/.progress`. Its text names the holder. The kernel releases the
lock when the holder and all child processes that inherited the descriptor have ended. The holder removes the lock file
at the end. So a process that gets the lock of a removed file tries again with the file that now has the name.

Where `flock` fails, or does not keep a second descriptor out, the lock is a heartbeat: see `heartbeat`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from gear_data.common.file_lock import release
from gear_data.common.typed_json import resolved
from gear_data.errors import DestinationExistsError, ForkedProcessError, UnwritableError
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.writing.heartbeat import Heartbeat, is_stale, remove_stale

LOCK_NAME = ".lock"

_POLL_SECONDS = 0.1
#: Time that the worker processes of a killed holder get to notice its end, and a new holder to write its name.
_GRACE_SECONDS = 30.0
_TEXT_BYTES = 4096

_log = logging.getLogger(__name__)


@resolved
@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock.

    Attributes:
        pid: its process id.
        host: the name of its machine.
        since: the time when it took the lock, in UTC.
    """

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"

    def to_json(self) -> str:
        """Returns the text of a lock file."""
        return json.dumps(asdict(self))

    @property
    def is_here(self) -> bool:
        """Whether the holder runs, or ran, on this machine."""
        return self.host == os.uname().nodename

    def has_ended(self) -> bool:
        """Returns whether the holder is a process of this machine that has ended."""
        if not self.is_here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # another user's process
        return False


@dataclass(frozen=True)
class FolderLock:
    """A lock that this process holds. A child process that was forked does not hold it.

    Attributes:
        descriptors: file descriptors that child processes must inherit, so that the lock outlives a killed parent as
            long as its children write.
        check_place: raises UnwritableError or DestinationExistsError if the folder was removed or replaced, or if
            another process took the lock over.
        pid: the process that took it.
    """

    descriptors: tuple[int, ...]
    check_place: Callable[[], None]
    pid: int = field(default_factory=os.getpid)

    def check(self) -> None:
        """Checks that this process still holds the lock.

        Raises:
            ForkedProcessError: its parent holds it.
            UnwritableError, DestinationExistsError: see `check_place`.
        """
        self.check_process()
        self.check_place()

    def check_process(self) -> None:
        """Checks that this process took the lock.

        Raises:
            ForkedProcessError: its parent did.
        """
        if os.getpid() != self.pid:
            raise ForkedProcessError(
                "the parent process of this one is writing here",
                hint="make another Writer, or begin another conversion, in the child process",
            )


def this_process() -> LockHolder:
    """Returns this process as the holder of a lock that it takes now."""
    return LockHolder(os.getpid(), os.uname().nodename, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))


def parse_holder(text: str | bytes) -> LockHolder | None:
    """Returns the holder that the text of a lock file names; None if it names none."""
    try:
        return msgspec.json.decode(text, type=LockHolder)
    except ValueError:
        return None


def in_use(name: str, holder: LockHolder | None, hint: str) -> DestinationExistsError:
    """Returns the error of a folder that another process is writing."""
    if holder is None:
        return DestinationExistsError("another process is writing here", file=name, hint=hint)
    if holder.has_ended():
        return DestinationExistsError(
            f"{holder} was writing here and has ended, but a process that it started holds its lock",
            file=name,
            hint="end that process; 'fuser' on the lock file names it",
        )
    return DestinationExistsError(f"another process is writing here: {holder}", file=name, hint=hint)


@contextmanager
def folder_lock(folder: Path, *, name: str, hint: str, wait: bool = False) -> Iterator[FolderLock]:
    """Holds the lock file of a folder.

    Creates the folder and the lock file. At the end removes the lock file, and the folder if nothing else is in it. The
    lock stays with the folder if the folder is renamed.

    Args:
        folder: the folder of the lock file.
        name: the destination, for messages.
        hint: the remedy if another process holds the lock.
        wait: wait for another process, instead of raising an error.

    Raises:
        DestinationExistsError: another process holds the lock.
        UnwritableError: the folder cannot be written to, or its file system has no locks.
    """
    place, lock, heartbeat = _acquire(folder, name, hint, wait)
    held = FolderLock((lock,), partial(_check, lock, os.path.join(folder, LOCK_NAME), name))
    try:
        yield held
    finally:
        if os.getpid() != held.pid:
            _close(place, lock)  # the lock is the parent's
        else:
            if heartbeat is not None:
                heartbeat.stop()
            _release(place, lock, folder.name)


def _check(lock: int, file: str, name: str) -> None:
    if not _has_name(lock, file):
        raise UnwritableError(
            "was removed or replaced while this process wrote to it", file=name, hint="write it again from the start"
        )


def _has_name(lock: int, file: str) -> bool:
    """Returns whether the folder's lock file is still the locked file."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(lock))
    except OSError:
        return False


def _acquire(folder: Path, name: str, hint: str, wait: bool) -> tuple[int, int, Heartbeat | None]:
    """Returns the descriptors of the folder and of its locked file, and the heartbeat that the lock needs."""
    blocked_since, announced = time.monotonic(), False
    while True:
        opened = _open(folder)
        if opened is None:
            continue  # another process removed the folder meanwhile
        place, lock, is_new = opened
        is_locked = _try_lock(place, lock)
        if is_locked or (is_locked is None and is_new):
            if _has_name(lock, os.path.join(folder, LOCK_NAME)):
                try:
                    _name_holder(lock, folder)
                except BaseException:  # such as a full disk
                    _release(place, lock, folder.name)
                    raise
                return place, lock, None if is_locked else Heartbeat(lock)
            _close(place, lock)
            if is_locked is None:
                raise UnwritableError(
                    "its file system has no locks: it has no flock, and a new file is another one at once",
                    file=name, hint="choose a folder on another file system",
                )  # fmt: skip
            continue  # the last holder removed the file after this process opened it
        holder = parse_holder(os.pread(lock, _TEXT_BYTES, 0))
        passing = holder is None or holder.has_ended()
        if is_locked is None and ((holder is not None and passing) or is_stale(place, lock)):
            remove_stale(place, lock, LOCK_NAME)
            passing = True
        _close(place, lock)
        if not wait and (not passing or time.monotonic() - blocked_since > _GRACE_SECONDS):
            raise in_use(name, holder, hint)
        if wait and holder is not None and not passing and not announced:
            _log.warning("%s: waiting for another process that is writing here: %s", name, holder)
            announced = True
        time.sleep(_POLL_SECONDS)


def _open(folder: Path) -> tuple[int, int, bool] | None:
    """Opens the folder and its lock file, and creates them if they are missing.

    Returns:
        Their descriptors, and whether this call made the lock file.
    """
    with typed_write_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except FileExistsError:
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(folder).st_mode):
                    raise
            return None  # another process removed the folder while `mkdir` looked at it
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            with suppress(FileExistsError):
                return place, os.open(LOCK_NAME, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=place), True
            return place, os.open(LOCK_NAME, flags, dir_fd=place), False
        except FileNotFoundError:
            os.close(place)
            return None
        except BaseException:
            os.close(place)
            raise


def _try_lock(place: int, lock: int) -> bool | None:
    """Returns whether this process has the lock now; None: the file system has no `flock`."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    try:
        second = os.open(LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    except OSError:
        return True  # it was removed meanwhile
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Two descriptors have the lock. Or the second one is of a file that another process made meanwhile.
        return None if os.path.samestat(os.fstat(lock), os.fstat(second)) else True
    except OSError:
        return True
    finally:
        os.close(second)


def _name_holder(lock: int, folder: Path) -> None:
    with typed_write_errors(folder / LOCK_NAME):
        os.ftruncate(lock, 0)
        os.pwrite(lock, this_process().to_json().encode(), 0)


def _release(place: int, lock: int, folder_name: str) -> None:
    with suppress(OSError):
        if os.path.samestat(os.stat(LOCK_NAME, dir_fd=place), os.fstat(lock)):
            os.unlink(LOCK_NAME, dir_fd=place)
    with suppress(OSError):
        os.rmdir(f"../{folder_name}", dir_fd=place)  # fails if it holds other files
    release(lock)
    os.close(place)


def _close(place: int, lock: int) -> None:
    os.close(lock)
    os.close(place)
