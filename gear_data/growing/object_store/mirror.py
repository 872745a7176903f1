"""Mirror: local copies of some files of a dataset in an object store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gear_data.storage.atomic import atomic_file
from gear_data.storage.manifest import Manifest
from gear_data.storage.remote.object_store import ObjectStore
from gear_data.storage.writing.file_store import LocalFileStore

_COPY_BYTES = 32 << 20


class Mirror(LocalFileStore):
    """A folder in which files of a bucket are read and prepared.

    A file has the same name here and there. Files of one name never change, except `manifest.json`, which is not here.

    Args:
        folder: the folder, which only this process uses. Files of an earlier process are removed.
        objects: the bucket.

    Attributes:
        written: the names of files that were written here since `begin`.
    """

    def __init__(self, folder: Path, objects: ObjectStore) -> None:
        super().__init__(folder)
        self.name = objects.name
        self._objects = objects
        self.written: list[str] = []
        self.remove_folder()

    def begin(self) -> None:
        """Forgets which files were written."""
        self.written = []

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        with super().writing(file) as path:
            yield path
        self.written.append(file)

    def path(self, file: str) -> Path:
        """Returns the local path of a file, which is fetched if necessary. A file that nobody has is missing here, too.

        Raises:
            RemoteError: the server cannot be reached.
            StorageFullError, UnwritableError: the copy cannot be written.
        """
        path = self.folder / file
        if not path.exists() and (size := self._objects.size(file)) is not None:
            with atomic_file(path) as target, self._objects.reader(file, size) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)
        return path

    def fetch(self, manifest: Manifest) -> None:
        """Fetches the tables of a dataset.

        Raises:
            FileNotFoundError: a table is missing.
            RemoteError, StorageFullError, UnwritableError: see `path`.
        """
        for entry in manifest.tables.values():
            if not self.path(entry.file).exists():
                raise FileNotFoundError(f"{self.name}/{entry.file}")

    def upload(self, files: Sequence[str]) -> None:
        """Uploads files, each one whole.

        Raises:
            RemoteError: the server cannot be reached.
            UnwritableError: the server refuses the write.
        """
        for file in files:
            self._objects.upload(self.folder / file, file)

    def forget(self, files: Iterable[str]) -> None:
        """Removes local copies."""
        for file in files:
            with suppress(OSError):
                (self.folder / file).unlink()

    def keep_only(self, files: set[str]) -> None:
        """Removes all local copies but some."""
        self.forget(set(self.files()) - files)

    def remove_folder(self) -> None:
        """Removes all local copies."""
        shutil.rmtree(self.folder, ignore_errors=True)
