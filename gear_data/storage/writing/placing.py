"""Puts finished files of one dataset into the folder of another."""

from __future__ import annotations

import shutil
from pathlib import Path

from gear_data.errors import CorruptShardError
from gear_data.storage.atomic import checksum, link_file
from gear_data.storage.manifest import REPAIR, FileEntry
from gear_data.storage.writing.file_store import FileStore, LocalFileStore


def place(store: FileStore, source: Path, entry: FileEntry, file: str, *, name: str, links: bool = True) -> bool:
    """Links or copies a file.

    Args:
        store: the dataset's folder.
        source: the file.
        entry: its size and checksum.
        file: its new name in the folder.
        name: its path or URL, for errors.
        links: whether it may become a hard link.

    Returns:
        Whether it is a link.

    Raises:
        CorruptShardError: the file has another checksum. Only a copy is checked.
        StorageFullError, UnwritableError: the folder cannot be written to.
    """
    if links and isinstance(store, LocalFileStore) and link_file(source, store.folder / file):
        return True
    with store.writing(file) as path:
        shutil.copyfile(source, path)
        if (found := checksum(path)) != entry.checksum:
            raise CorruptShardError(
                f"its checksum is {found}, the manifest says {entry.checksum}",
                file=name,
                hint=f"its bytes were changed: {REPAIR}",
            )
    return False
