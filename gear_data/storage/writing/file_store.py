"""The folder of a dataset as its writer sees it.

Each file is complete or missing, never partial.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from gear_data.errors import DestinationExistsError
from gear_data.storage.atomic import atomic_file, typed_write_errors


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

    def read(self, file: str) -> bytes:
        """Returns the bytes of a file. Raises FileNotFoundError if it does not exist."""

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

    def locked(self, file: str) -> AbstractContextManager[None]:
        """Holds the lock of a file, if the store has locks.

        The system releases it when the process dies.

        Raises:
            DestinationExistsError: another conversion holds the lock.
            UnwritableError: the folder cannot be written to.
        """


class LocalFileStore:
    """A folder of this machine or of a mounted file system.

    The folder is created with its first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        # Names differ between processes: a worker that timed out may still write the same file.
        with atomic_file(self.folder / file, mark=f".{os.getpid()}") as path:
            yield path

    def read(self, file: str) -> bytes:
        return (self.folder / file).read_bytes()

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

    @contextmanager
    def locked(self, file: str) -> Iterator[None]:
        path = self.folder / file
        with typed_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.open("wb")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DestinationExistsError(
                    "another conversion is writing here",
                    file=self.name,
                    hint="wait until it has finished, or choose another destination",
                ) from error
            except OSError:
                pass  # a file system without locks: users must not run two conversions there
            yield


def put_text(store: FileStore, file: str, text: str) -> None:
    """Writes a small text file."""
    with store.writing(file) as path:
        path.write_text(text, encoding="utf-8")
