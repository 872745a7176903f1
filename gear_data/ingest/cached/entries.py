"""The conversions in the cache: a folder of each, with its dataset and a header.

    CACHE/datasets/ORIGIN-STATE/entry.json    the source, the options, the versions, the time
    CACHE/datasets/ORIGIN-STATE/NAME/         the dataset

The header is written last. An entry without a header is unfinished, and nobody opens it. A process that converts holds
the lock of the entry's folder. A reader holds a lease of the dataset's manifest. An entry with either is in use.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gear_data.common.file_lock import remove_unlocked
from gear_data.common.paths import absolute_path
from gear_data.common.typed_json import resolved
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.storage.atomic import typed_write_errors, write_text
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.remote.cache import ShardCache
from gear_data.storage.writing.folder_lock import LOCK_NAME, folder_lock

#: The folder of conversions in the cache, and the header of each.
CONVERSIONS, HEADER = "datasets", "entry.json"


@resolved
class EntryHeader(msgspec.Struct, frozen=True):
    """The header of an entry.

    Attributes:
        version: the version of gear-data that converted.
        format_version: its newest version of datasets.
        source: the name of the source.
        places: the paths, URLs and hub ids of the source; empty for an object in memory.
        options: the options of the conversion, which `ConvertOptions.parse` reads.
        created: the time of the conversion, UTC.
    """

    version: str
    format_version: int
    source: str
    places: tuple[str, ...]
    options: dict[str, Any]
    created: str

    def write(self, folder: Path) -> None:
        """Writes the header into the folder of its entry."""
        write_text(folder / HEADER, msgspec.json.encode(self).decode())


@dataclass(frozen=True)
class CacheEntry:
    """A conversion in the cache.

    Attributes:
        key: the name of its folder.
        source: the name of its source; None if the conversion did not finish.
        created: the time of the conversion, UTC.
        used: the time when it was last opened, in seconds since 1970.
        bytes: the size of its files.
        folder: its folder.
    """

    key: str
    source: str | None
    created: str | None
    used: float
    bytes: int
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON-able mapping."""
        return {**asdict(self), "folder": str(self.folder)}


def read_header(folder: Path) -> EntryHeader | None:
    """Returns the header of an entry; None if the conversion did not finish."""
    try:
        return msgspec.json.decode((folder / HEADER).read_bytes(), type=EntryHeader)
    except (OSError, ValueError):
        return None


def list_entries(cache: Path) -> list[CacheEntry]:
    """Returns the conversions in a cache, the least recently used one first."""
    folders = (cache / CONVERSIONS).iterdir() if (cache / CONVERSIONS).is_dir() else ()
    return sorted((_entry(folder) for folder in folders if folder.is_dir()), key=lambda entry: (entry.used, entry.key))


def _entry(folder: Path) -> CacheEntry:
    header = read_header(folder)
    statuses = [status for path in _paths(folder) if (status := _status(path)) is not None]
    used = _status(folder / HEADER)
    return CacheEntry(
        key=folder.name,
        source=None if header is None else header.source,
        created=None if header is None else header.created,
        used=max((status.st_mtime for status in statuses), default=0.0) if used is None else used.st_mtime,
        bytes=sum(status.st_blocks * 512 for status in statuses),
        folder=folder,
    )


def _paths(folder: Path) -> Iterator[Path]:
    """Yields a folder and what is in it.

    A conversion may remove folders meanwhile. Then `rglob` of Python 3.11 fails.
    """
    yield folder
    for place, folders, names in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *names))


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:  # removed meanwhile
        return None


def remove_entry(folder: Path) -> bool:
    """Removes an entry that is not in use. Returns whether it is gone.

    Raises:
        UnwritableError: the cache folder cannot be written to.
    """
    try:
        with folder_lock(folder, name=str(folder), hint=""):
            for manifest in folder.glob(f"*/{MANIFEST_NAME}"):
                # From here on, nobody opens the dataset.
                if not remove_unlocked(manifest):
                    return False
            clear_entry(folder)
    except DestinationExistsError:
        return False
    return True


def clear_entry(folder: Path) -> None:
    """Removes all files of an entry that this process has locked.

    What a killed process leaves has neither header nor manifest: nobody takes it for a conversion.
    """
    with typed_write_errors(folder):
        for path in (folder / HEADER, *folder.glob(f"*/{MANIFEST_NAME}")):
            path.unlink(missing_ok=True)
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_NAME:
                path.unlink(missing_ok=True)


def find_entries(cache: Path, name: str) -> list[CacheEntry]:
    """Returns the conversions of a key or of a source.

    Raises:
        InvalidArgumentError: there is none.
    """
    places = {name, absolute_path(name)}  # as `open` names a source
    found = [entry for entry in list_entries(cache) if entry.key == name or entry.source in places]
    if not found:
        raise InvalidArgumentError(f"the cache has no conversion {name!r}", hint="gear-data cache list shows all")
    return found


@dataclass(frozen=True)
class CacheSize:
    """The size of a cache, in bytes.

    Attributes:
        conversions: the size of the conversions of sources.
        fetched: the size of the fetched files of datasets at URLs.
    """

    conversions: int
    fetched: int

    @property
    def bytes(self) -> int:
        """Their sum."""
        return self.conversions + self.fetched


def cache_size(cache: Path) -> CacheSize:
    """Returns the size of a cache."""
    return CacheSize(
        sum(entry.bytes for entry in list_entries(cache)), sum(file.bytes for file in ShardCache(cache, None).files())
    )


def prune(cache: Path, max_bytes: int) -> int:
    """Removes conversions and fetched files until a cache has at most `max_bytes`, or only what is in use remains.

    Unfinished conversions are removed first, and then what was not used for the longest time.

    Returns:
        The number of bytes that were removed.

    Raises:
        InvalidArgumentError: `max_bytes` is negative.
        UnwritableError: the cache folder cannot be written to.
    """
    if max_bytes < 0:
        raise InvalidArgumentError(f"a cache cannot have {max_bytes} bytes", hint="give 0 or more")
    with typed_write_errors(cache):
        candidates = _candidates(cache)
        before = total = sum(bytes_ for bytes_, _ in candidates)
        for bytes_, remove in candidates:
            if total <= max_bytes:
                break
            total -= bytes_ if remove() else 0
        return before - total


def _candidates(cache: Path) -> list[tuple[int, Callable[[], bool]]]:
    """Returns the size of each entry and file, and a function that removes it; what leaves first comes first."""
    found: list[tuple[bool, float, int, Callable[[], bool]]] = [
        (entry.source is not None, entry.used, entry.bytes, partial(remove_entry, entry.folder))
        for entry in list_entries(cache)
    ]
    files = ShardCache(cache, None).files()
    found += [(file.is_complete, file.used_ns / 1e9, file.bytes, file.remove) for file in files]
    return [(bytes_, remove) for _, _, bytes_, remove in sorted(found, key=lambda item: item[:2])]


def mark_used(folder: Path) -> None:
    """Marks an entry as used now."""
    with suppress(OSError):  # a cache that only others can write
        os.utime(folder / HEADER)
