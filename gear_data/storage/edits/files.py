"""EditedFiles: the files of a dataset, with files of an edit that was not saved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from gear_data.common.private_folder import OwnedFolder
from gear_data.errors import DatasetNotFoundError
from gear_data.storage.dataset_files import SIDECARS, CachedFiles, DatasetFiles, cache_of
from gear_data.storage.identity import generation_gone
from gear_data.storage.manifest import FileEntry, Manifest
from gear_data.storage.mapped_files import MappedFiles
from gear_data.storage.mapped_shards import check_size
from gear_data.storage.remote.cache import ShardCache


class EditedFiles:
    """`DatasetFiles` of an edited dataset: files of the dataset, and files of the edit in a folder of this machine.

    Args:
        base: the files of the dataset.
        manifest: the manifest of the edited dataset.
        folder: the folder of the edit. Its names differ from the names in the dataset.
        owner: keeps the folder as long as these files live; None in a process that got them from another one.

    Attributes:
        mapped: see `DatasetFiles`.

    Raises:
        DatasetNotFoundError: the folder is gone, with the process that made the edit.
    """

    def __init__(self, base: DatasetFiles, manifest: Manifest, folder: Path, owner: OwnedFolder | None = None) -> None:
        if not folder.is_dir():
            raise DatasetNotFoundError(
                "the files of an edit that was not saved are gone",
                file=str(folder),
                hint="save the edited dataset, and open what was saved in other processes",
            )
        self._base = base
        self._manifest = manifest
        self._folder = folder
        self._owner = owner
        self._own = frozenset(entry.file for entry in manifest.files if (folder / entry.file).exists())
        #: Files of the edit are in no dataset that others replace.
        self.mapped = MappedFiles(lambda: None, times=self.cache is None)

    def __reduce__(self) -> tuple[Any, ...]:
        return (EditedFiles, (self._base, self._manifest, self._folder))

    @property
    def location(self) -> Path | str:
        return self._base.location

    @property
    def base(self) -> DatasetFiles:
        """The files of the dataset."""
        return self._base

    @property
    def cache(self) -> ShardCache | None:
        """The cache that keeps fetched files of the dataset; None if it is in a folder."""
        return cache_of(self._base)

    def manifest(self) -> Manifest:
        self._base.manifest()
        return self._manifest

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        self._base.check(manifest, bad | self._own)
        for entry in manifest.files:
            if entry.file in self._own and entry.file not in bad:
                check_size(self._folder, entry)

    def local(self, entry: FileEntry) -> AbstractContextManager[Path]:
        return self._of_edit(entry) if entry.file in self._own else self._base.local(entry)

    @contextmanager
    def _of_edit(self, entry: FileEntry) -> Iterator[Path]:
        check_size(self._folder, entry)
        yield self._folder / entry.file

    def name(self, entry: FileEntry) -> str:
        return str(self._folder / entry.file) if entry.file in self._own else self._base.name(entry)

    def identity(self, entry: FileEntry) -> list[Any]:
        if entry.file not in self._own:
            return self._base.identity(entry)
        path = Path(os.path.realpath(self._folder / entry.file))
        status = path.stat()
        return [str(path), status.st_ino, status.st_mtime_ns]

    def sidecars(self, contents: str) -> Path:
        return self._folder / SIDECARS / contents

    def at(self, generation: int | None = None) -> EditedFiles:
        if generation not in (None, self._manifest.generation):
            raise generation_gone(generation, self.location)
        return self

    def holds(self, entry: FileEntry) -> bool:
        """Returns whether a file is on this machine. See `CachedFiles.holds`."""
        return (
            entry.file in self._own or not isinstance(self._base, CachedFiles | EditedFiles) or self._base.holds(entry)
        )

    def mark_used(self, entry: FileEntry) -> bool:
        """Marks a file as used now. See `CachedFiles.mark_used`."""
        if entry.file in self._own or not isinstance(self._base, CachedFiles | EditedFiles):
            return True
        return self._base.mark_used(entry)
