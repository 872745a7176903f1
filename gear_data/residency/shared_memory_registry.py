"""The registry of shared memory: processes of one user find each other's segments.

A segment has no name in a file system. Each holder registers itself in a small file, in a folder that only the user
can read. Another process opens the segment through a live holder's /proc/PID/fd/FD. The row of an ended process is
harmless. A process that makes a segment removes the files of all segments that nobody holds any more.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from gear_data.common.file_lock import locked, remove_unlocked
from gear_data.common.private_folder import user_folder
from gear_data.errors import GearError
from gear_data.residency.shared_memory import Segment, create_segment, map_segment
from gear_data.storage.atomic import write_text

# Errors are logged as text: their tracebacks would keep memory.
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """A process that has a segment open.

    Attributes:
        pid: the process's id.
        started: when the process started, in clock ticks after boot, because ids are used again.
        descriptor: its file descriptor of the segment.
        inode: the inode that is open there.
    """

    pid: int
    started: int
    descriptor: int
    inode: int

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{self.descriptor}"

    def is_alive(self) -> bool:
        """Returns whether the process lives and has the segment open.

        Returns True if this process cannot check.
        """
        try:
            return _start_time(self.pid) == self.started and os.stat(self.path).st_ino == self.inode
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError:  # not permitted, or too many open files
            return True


def shared_buffer(segment: Segment, fill: Callable[[int], None]) -> pa.Buffer:
    """Maps a segment of this machine as a read-only buffer.

    The first process creates and fills it.

    Args:
        segment: its contents and seals.
        fill: see `create_segment`.

    Raises:
        HostMemoryError: there is too little memory for a new segment.
        Exception: any error of `fill`.
    """
    return map_segment(find_or_create(segment, lambda: create_segment(segment, fill)), segment)


def find_or_create(segment: Segment, create: Callable[[], int]) -> int:
    """Returns a file descriptor of a segment.

    The segment is a live holder's, or a new one.

    If several processes call this at the same time, one creates the segment, and the others wait. A process that can
    reach no holder, or has no private folder, creates its own segment and logs a warning.

    Raises:
        Exception: any error of `create`.
    """
    key = segment.key
    with ExitStack() as stack:
        try:
            folder = registry_folder()
            stack.enter_context(locked(folder / f"{key}.lock"))
            rows = folder / f"{key}{_rows_suffix()}"
            holders = [holder for holder in _read(rows) if holder.is_alive()]
            elsewhere = any(path != rows for path in folder.glob(f"{key}-*.json"))
        except OSError as error:
            _log.warning("shared memory is not shared with other processes: %s", str(error))
            return create()
        descriptor = _reach(holders, segment)
        if descriptor is None:
            # A segment may be freed after the first look: then its holder refuses nobody.
            holders = [holder for holder in holders if holder.is_alive()]
            if holders or elsewhere:
                _log.warning(
                    "another process may hold a copy in shared memory, but this process cannot open it, and makes a "
                    "copy of its own"
                )
            descriptor = create()
            remove_ended(folder)
        try:
            own = Holder(os.getpid(), _start_time(os.getpid()), descriptor, os.fstat(descriptor).st_ino)
            write_text(rows, json.dumps([astuple(holder) for holder in (*holders, own)]))
        except (GearError, OSError) as error:
            _log.warning("shared memory is not shared with other processes: %s", str(error))
        return descriptor


def _reach(holders: list[Holder], segment: Segment) -> int | None:
    """Opens the segment for reading through one of its holders.

    Returns None if no holder allows it.
    """
    for holder in holders:
        try:
            descriptor = os.open(holder.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        # The row may be outdated: check that the open file is the segment before anything maps it.
        if os.fstat(descriptor).st_ino == holder.inode and segment.is_open_at(descriptor):
            return descriptor
        os.close(descriptor)
    return None


def _read(path: Path) -> list[Holder]:
    try:
        return [Holder(*map(int, row)) for row in json.loads(path.read_bytes())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def remove_ended(folder: Path) -> None:
    """Removes the files of segments that no process holds, and locks that nobody has.

    Rows of other PID namespaces stay, because this process cannot see whether their processes live.

    Args:
        folder: see `registry_folder`.
    """
    with suppress(OSError):
        names, suffix = os.listdir(folder), _rows_suffix()
        others = {name.rpartition("-")[0] for name in names if name.endswith(".json") and not name.endswith(suffix)}
        for name in names:
            key = name.removesuffix(".lock")
            if key != name:
                is_unused = partial(_forget_ended, folder / f"{key}{suffix}", key in others)
                remove_unlocked(folder / name, is_unused)


def _forget_ended(rows: Path, others: bool) -> bool:
    """Removes the rows of one segment if none has a living holder. Returns whether its lock may go, too."""
    if any(holder.is_alive() for holder in _read(rows)):
        return False
    rows.unlink(missing_ok=True)
    return not others


def registry_folder() -> Path:
    """Returns the folder in which this user's processes register segments.

    Raises:
        OSError: see `user_folder`.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return user_folder("gear-data-host", runtime if os.path.isdir(runtime) else None)


def _rows_suffix() -> str:
    """Returns the end of the names of files with rows of processes that this process can see."""
    return f"-{_pid_namespace()}.json"


def _pid_namespace() -> int:
    """Returns this process's PID namespace.

    Process ids are valid only within one namespace.
    """
    return os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int:
    # The name in parentheses may contain spaces and parentheses; starttime is field 22, see proc_pid_stat(5).
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
