"""Files that are complete or missing, never partial.

They are written under a temporary name, fsynced, and renamed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from gear_data.common.regular_files import open_regular
from gear_data.errors import GearError, StorageFullError, UnwritableError, is_disk_full, refuse_exhausted

_CHUNK = 8 << 20
# Arguments of renameat2(2).
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def typed_write_errors(path: Path) -> Iterator[None]:
    """Converts any OSError of the block into a typed error that names `path`.

    Raises:
        StorageFullError: the disk is full, in whatever form the writing library reports it.
        OpenFilesError, HostMemoryError: this process has reached its limit of open files, or of memory.
        UnwritableError: any other OSError.
    """
    try:
        yield
    except GearError:
        raise
    except OSError as error:
        if is_disk_full(error):
            raise StorageFullError(
                "no space left on the device", file=str(path), hint="free some space, or choose another disk"
            ) from error
        refuse_exhausted(error, str(path))
        raise UnwritableError(f"cannot be written: {error.strerror or error}", file=str(path)) from error


@contextmanager
def atomic_file(path: Path, mark: str = "") -> Iterator[Path]:
    """Yields a temporary path.

    Renames it to `path` if the block succeeds, and removes it if the block fails.

    Args:
        path: final path. Missing parent folders are created.
        mark: part of the temporary name. Processes that write the same path need different marks.

    Raises:
        StorageFullError: the disk is full.
        UnwritableError: the system refuses the write.
    """
    temporary = path.with_name(f".{path.name}{mark}.tmp")
    try:
        with typed_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            fsync(temporary)
            os.replace(temporary, path)
            fsync(path.parent)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink()
        raise


def is_unrenamed(name: str, *files: str) -> bool:
    """Returns whether a name is the temporary one of a file of these (`atomic_file`), which a killed process leaves."""
    return name.endswith(".tmp") and name.startswith(tuple(f".{file}." for file in files))


def link_file(source: Path, path: Path) -> bool:
    """Gives a file a second name, a hard link, if the file systems allow it.

    Args:
        source: existing file. A symbolic link is followed.
        path: new name, which is replaced if it exists. Missing parent folders are created.

    Returns:
        False if there is no link, such as between two disks or for a file of another user.

    Raises:
        UnwritableError: the folder of the new name cannot be written to.
        StorageFullError: the disk is full.
    """
    with typed_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            os.link(os.path.realpath(source), path)
        except OSError as error:
            if is_disk_full(error):
                raise
            return False
        fsync(path.parent)
        return True


def write_text(path: Path, text: str) -> None:
    """Writes a small text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def swap_folders(first: Path, second: Path) -> None:
    """Swaps two folders.

    Linux swaps them in one step. If the file system cannot, `second` is missing for a moment; `first` stays complete. A
    process that is killed then may leave the old folder under a hidden name, which the next swap of `second` removes.

    Raises:
        UnwritableError: a folder cannot be moved.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    swap = getattr(libc, "renameat2", None)
    if swap is not None and swap(_AT_FDCWD, bytes(first), _AT_FDCWD, bytes(second), _RENAME_EXCHANGE) == 0:
        return
    aside = second.with_name(f".{second.name}.gear-old")
    shutil.rmtree(aside, ignore_errors=True)
    with typed_write_errors(second):
        os.replace(second, aside)
        try:
            os.replace(first, second)
        except OSError:
            os.replace(aside, second)
            raise
        os.replace(aside, first)


def checksum(path: Path) -> str:
    """Returns xxh3-128 of a file's bytes, as `xxh3-128:HEX`."""
    digest = xxhash.xxh3_128()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"xxh3-128:{digest.hexdigest()}"


def fsync(path: Path) -> None:
    """Waits until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_names(path: Path) -> None:
    """Waits until the disk has the name of a file, and the names of the folders above it, which may be new."""
    folder, *above = path.absolute().parents
    fsync(folder)
    device = folder.stat().st_dev
    for each in above:
        # Nobody makes a new folder above a mount point, nor in a folder that cannot be read.
        if each.stat().st_dev != device or not os.access(each, os.R_OK):
            return
        fsync(each)
