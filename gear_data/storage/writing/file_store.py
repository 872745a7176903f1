"""The folder of a dataset as its writer sees it.

Each file is complete or missing, never partial.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import xxhash

from gear_data.common.regular_files import JSON_BYTES, read_regular
from gear_data.storage.atomic import atomic_file, typed_write_errors
from gear_data.storage.writing.folder_lock import FolderLock, folder_lock, this_process

#: Remedy for a folder that another process is writing.
IN_USE_HINT = (
    "wait until it has finished, or choose another destination; "
    "in a job of several processes, convert in one of them, or give resume=True in all: then the others wait"
)


class FileStore(Protocol):
    """Files of one folder, by relative names with `/` between parts.

    Attributes:
        name: path or URL of the folder, for messages.
    """

    name: str

    def writing(self, file: str) -> AbstractContextManager[Path]:
        """Yields a local path to write.

        The data becomes `file` if the block succeeds, and is discarded if it fails.

        Raises:
            StorageFullError: the disk is full.
            UnwritableError: the folder cannot be written to.
        """

    def read(self, file: str, limit: int = JSON_BYTES) -> bytes:
        """Returns the bytes of a regular file.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: the file is not a regular file, or has more than `limit` bytes.
        """

    def size(self, file: str) -> int | None:
        """Returns the size of a file in bytes; None if it does not exist."""

    def files(self, folder: str = "") -> list[str]:
        """Returns the names of all files in a folder and its subfolders.

        The list is empty if the folder does not exist.
        """

    def remove(self, file: str) -> None:
        """Removes a file, or a folder with its contents, if it exists.

        Raises:
            UnwritableError: the file cannot be removed.
        """

    def clear(self, folder: str, keep: str) -> None:
        """Removes the contents of a folder, except the file `keep`.

        Raises:
            UnwritableError: a file cannot be removed.
        """

    def locked(self, folder: str, wait: bool = False) -> AbstractContextManager[FolderLock]:
        """Holds the lock file `.lock` of a folder.

        Creates the folder. At the end removes the lock file, and the folder if it is empty.

        Args:
            folder: folder of the lock file.
            wait: wait for another process that holds the lock, instead of raising an error.

        Raises:
            DestinationExistsError: another process holds the lock.
            UnwritableError: the folder cannot be written to.
        """


class LocalFileStore:
    """A folder of this machine or of a mounted file system.

    The folder is created with its first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)

    def path(self, file: str) -> Path:
        """Returns the path of a file, which need not exist."""
        return self.folder / file

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        # Names differ between processes: a worker that timed out may still write the same file.
        with atomic_file(self.folder / file, mark=f".{os.getpid()}-{_machine()}") as path:
            yield path

    def read(self, file: str, limit: int = JSON_BYTES) -> bytes:
        return read_regular(self.folder / file, limit)

    def size(self, file: str) -> int | None:
        path = self.folder / file
        return path.stat().st_size if path.is_file() else None

    def files(self, folder: str = "") -> list[str]:
        found = (self.folder / folder).rglob("*")
        return sorted(str(path.relative_to(self.folder)) for path in found if path.is_file())

    def remove(self, file: str) -> None:
        path = self.folder / file
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with typed_write_errors(path):
                path.unlink(missing_ok=True)

    def clear(self, folder: str, keep: str) -> None:
        root = self.folder / folder
        for path in sorted(root.rglob("*"), reverse=True):  # contents before their folder
            if path == self.folder / keep:
                continue
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # holds `keep`
                    path.rmdir()
            else:
                with typed_write_errors(path):
                    path.unlink(missing_ok=True)

    def remove_unrenamed(self, file: str) -> None:
        """Removes the temporary files of a file that processes of this machine left when they were killed."""
        path = self.folder / file
        for found in path.parent.glob(f".{glob.escape(path.name)}.*-{_machine()}.tmp"):
            pid = found.name.removeprefix(f".{path.name}.").partition("-")[0]
            if re.fullmatch(r"[0-9]{1,9}", pid) and replace(this_process(), pid=int(pid)).has_ended():
                with suppress(OSError):  # another process was faster
                    found.unlink()

    @contextmanager
    def locked(self, folder: str, wait: bool = False) -> Iterator[FolderLock]:
        with folder_lock(self.folder / folder, name=self.name, hint=IN_USE_HINT, wait=wait) as lock:
            yield lock


def _machine() -> str:
    """Returns a short name of this machine for names of files. A number of a process says nothing on another one."""
    return xxhash.xxh32_hexdigest(os.uname().nodename.encode())


def put_text(store: FileStore, file: str, text: str) -> None:
    """Writes a small text file."""
    with store.writing(file) as path:
        path.write_text(text, encoding="utf-8")


def put_single_text(store: FileStore, file: str, text: str) -> None:
    """Writes a small text file into a folder that may not be locked, nor swept."""
    put_text(store, file, text)
    if isinstance(store, LocalFileStore):
        store.remove_unrenamed(file)
