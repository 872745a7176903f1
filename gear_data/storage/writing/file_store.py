"""A dataset's folder as its writer sees it: files that are there whole or not at all."""

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
    """Files by their names relative to a folder, with `/` between parts.

    Attributes:
        name: of the folder, for messages: a path or a URL.
    """

    name: str

    def writing(self, file: str) -> AbstractContextManager[Path]:
        """A local path to fill; what it holds is at `file` once the body succeeds, and nowhere when it fails.

        Raises:
            StorageFullError: the disk is full.
            UnwritableError: the folder cannot be written to.
        """

    def read(self, file: str) -> bytes:
        """Raises FileNotFoundError where there is no such file."""

    def size(self, file: str) -> int | None:
        """Bytes of a file; None where there is none."""

    def files(self, folder: str = "") -> list[str]:
        """The names of all files in a folder and in those below it; none where there is no such folder."""

    def remove(self, file: str) -> None:
        """Removes a file, or a folder and all in it; no error where there is none.

        Raises:
            UnwritableError: the file cannot be removed.
        """

    def locked(self, file: str) -> AbstractContextManager[None]:
        """Holds the lock of a file, where the place has locks; the system takes it back from a process that dies.

        Raises:
            DestinationExistsError: another conversion holds it.
            UnwritableError: the folder cannot be written to.
        """


class LocalFileStore:
    """A folder of this machine, or of a file system mounted here; made when something is first written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        # A worker that was given up for dead may still write the same file.
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
                    "another conversion is writing here", file=self.name, hint="wait for it, or choose another place"
                ) from error
            except OSError:
                pass  # a file system without locks: there it is up to the user
            yield


def put_text(store: FileStore, file: str, text: str) -> None:
    """Writes a small text file."""
    with store.writing(file) as path:
        path.write_text(text, encoding="utf-8")
