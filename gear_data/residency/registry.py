"""Who holds which segment of shared memory, so that other processes of the same user find it.

A segment has no name in any file system. Its holders note themselves in a small file in a folder that is private to
the user, and a newcomer takes it from whichever holder still lives, through /proc/PID/fd/FD. A row that outlived its
process is harmless, and dropped by the next one to come.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path

from gear_data.common.file_lock import locked
from gear_data.common.private_folder import user_folder
from gear_data.errors import GearError
from gear_data.residency.segment import is_segment
from gear_data.storage.atomic import write_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """A process that has a segment open: its id, when it began (clock ticks after boot, since ids are used again), its
    file descriptor, and the inode that is open there."""

    pid: int
    began: int
    descriptor: int
    inode: int

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{self.descriptor}"

    def is_alive(self) -> bool:
        """Whether the process lives and has it open still, as far as this process is let see."""
        try:
            return _began(self.pid) == self.began and os.stat(self.path).st_ino == self.inode
        except PermissionError:
            return True
        except OSError:
            return False


def find_or_create(key: str, size: int, create: Callable[[], int]) -> int:
    """The file descriptor of the segment of this key and size: a living holder's, or a new one.

    Of several processes that come at once one creates it, and the others wait. One that can reach no holder, or has no
    private folder to look for them in, creates a segment of its own and logs that.

    Raises:
        whatever `create` raises.
    """
    with ExitStack() as held:
        try:
            folder = _registry_folder()
            held.enter_context(locked(folder / f"{key}.lock"))
            rows = folder / f"{key}-{_pid_namespace()}.json"
            holders = [holder for holder in _read(rows) if holder.is_alive()]
        except OSError as error:
            _log.warning("shared memory is not shared with other processes: %s", error)
            return create()
        descriptor = _reach(holders, key, size)
        if descriptor is None:
            if holders or any(path != rows for path in folder.glob(f"{key}-*.json")):
                _log.warning("another copy in shared memory may be there, out of this process's reach: making its own")
            descriptor = create()
        own = Holder(os.getpid(), _began(os.getpid()), descriptor, os.fstat(descriptor).st_ino)
        try:
            write_text(rows, json.dumps([astuple(holder) for holder in (*holders, own)]))
        except GearError as error:
            _log.warning("shared memory is not shared with other processes: %s", error)
        return descriptor


def _reach(holders: list[Holder], key: str, size: int) -> int | None:
    """The segment opened anew for reading through one of its holders; None where none lets this process."""
    for holder in holders:
        try:
            descriptor = os.open(holder.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        # Not by the row alone: the file is the user's, but what maps it will read addresses there.
        if os.fstat(descriptor).st_ino == holder.inode and is_segment(descriptor, key, size):
            return descriptor
        os.close(descriptor)
    return None


def _read(path: Path) -> list[Holder]:
    try:
        return [Holder(*map(int, row)) for row in json.loads(path.read_bytes())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def _registry_folder() -> Path:
    """Returns the folder in which this user's processes list their segments. Raises OSError as `user_folder` does."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return user_folder("gear-data-host", runtime if os.path.isdir(runtime) else None)


def _pid_namespace() -> int:
    """Process ids mean something within one namespace alone."""
    return os.stat("/proc/self/ns/pid").st_ino


def _began(pid: int) -> int:
    # The name in parentheses may hold anything, spaces and parentheses too; starttime is field 22 (proc_pid_stat(5)).
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
