"""Puts finished files into the folder of a growing dataset."""

from __future__ import annotations

import shutil
from pathlib import Path

from gear_data.errors import CorruptShardError
from gear_data.storage.atomic import checksum, link_file
from gear_data.storage.manifest import FileEntry
from gear_data.storage.writing.file_store import LocalFileStore


def place(store: LocalFileStore, source: Path, entry: FileEntry, file: str) -> None:
    """Links or copies a file.

    Args:
        store: the dataset's folder.
        source: the file.
        entry: its size and checksum.
        file: its new name in the folder.

    Raises:
        CorruptShardError: the file has another checksum. Only a copy is checked.
        StorageFullError, UnwritableError: the folder cannot be written to.
    """
    if link_file(source, store.folder / file):
        return
    with store.writing(file) as path:
        shutil.copyfile(source, path)
        if (found := checksum(path)) != entry.checksum:
            raise CorruptShardError(f"its checksum is {found}, the manifest says {entry.checksum}", file=str(source))
