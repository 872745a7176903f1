"""Zarr stores: folders, and `.zip` archives of such folders.

A store maps keys, such as `data/action/0.0`, to bytes. A folder has a file for each key, an archive has a member. The
keys `.zgroup` and `.zarray` (version 2) or `zarr.json` (version 3) mark groups and arrays:
https://zarr-specs.readthedocs.io.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import IO

from gear_data.errors import CorruptSourceError, errors_as
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.zip_members import ARCHIVE_ERRORS, check_member, check_sizes

ZIP_SUFFIX = ".zip"
ARRAY_V2, ATTRIBUTES_V2, NODE_V3 = ".zarray", ".zattrs", "zarr.json"
_NODES = (ARRAY_V2, ".zgroup", NODE_V3)
_DOWNLOAD_AGAIN = "download it again"
#: Message and hint for members of another compression.
_OTHER_METHOD = "is compressed by another method than deflate", "write the archive again, uncompressed"


@dataclass(frozen=True)
class ZarrStore:
    """A store of Zarr arrays.

    Attributes:
        name: the name of the folder or archive, for messages.
        files: key -> file; None for an archive.
        members: key -> member; None for a folder.
        archive: the archive; None for a folder.
    """

    name: str
    files: Mapping[str, SourceFile] | None = None
    members: Mapping[str, zipfile.ZipInfo] | None = None
    archive: SourceFile | None = None

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yields each key with the bytes that it takes in the folder or archive."""
        for key, file in (self.files or {}).items():
            yield key, file.size
        for key, member in (self.members or {}).items():
            yield key, member.compress_size

    def place(self, key: str) -> str:
        """Returns the name of a key, for messages."""
        file = None if self.files is None else self.files.get(key)
        return file.name if file is not None else f"{self.name}/{key}"


def find_stores(location: Location) -> list[ZarrStore]:
    """Returns the stores of a location.

    They are the topmost folders with Zarr's files, in folders and in archives. An archive without Zarr's files has no
    store.

    Raises:
        CorruptSourceError: an archive is damaged.
    """
    roots = _roots(file.name for file in location.files)
    files: dict[str, dict[str, SourceFile]] = {root: {} for root in roots}
    for file in location.files if roots else ():
        root = _root_of(file.name, files)
        if root is not None:
            files[root][_key(file.name, root)] = file
    stores = [ZarrStore(root or location.name, files=found) for root, found in files.items()]
    for archive in location.with_suffix(ZIP_SUFFIX):
        if _root_of(archive.name, files) is None:
            stores += _stores_of_archive(archive)
    return stores


def _stores_of_archive(file: SourceFile) -> list[ZarrStore]:
    file.check_readable()
    with _reading(file.name), file.open() as stream, zipfile.ZipFile(stream) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
    roots = _roots(info.filename for info in infos)
    if not roots:
        return []
    check_sizes(infos, file)
    members: dict[str, dict[str, zipfile.ZipInfo]] = {root: {} for root in roots}
    for info in infos:
        root = _root_of(info.filename, members)
        if root is not None:
            members[root][_key(info.filename, root)] = info
    return [
        ZarrStore(f"{file.name}/{root}" if root else file.name, members=found, archive=file)
        for root, found in members.items()
    ]


def _roots(names: Iterable[str]) -> list[str]:
    """Returns the topmost folders with a group or an array; "" is the place itself."""
    folders = dict.fromkeys(name.rpartition("/")[0] for name in names if name.rpartition("/")[2] in _NODES)
    if "" in folders:
        return [""]
    return [folder for folder in folders if not any(parent in folders for parent in _parents(folder))]


def _root_of(name: str, roots: Mapping[str, object]) -> str | None:
    """Returns the root among `roots` that a file is in."""
    return next((parent for parent in (*_parents(name), "") if parent in roots), None)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _key(name: str, root: str) -> str:
    return name[len(root) + 1 :] if root else name


class StoreReader:
    """Reads the values of a store's keys; a context manager.

    An archive stays open between two keys.
    """

    def __init__(self, store: ZarrStore) -> None:
        self._store = store
        self._open = ExitStack()
        self._archive: zipfile.ZipFile | None = None

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def place(self, key: str) -> str:
        """Returns the name of a key, for messages."""
        return self._store.place(key)

    def read(self, key: str, first: int = 0, last: int | None = None) -> bytes | None:
        """Returns the bytes [first, last) of a key; None if the store does not have the key.

        Args:
            key: the key.
            first: counted from the end if it is negative.
            last: None for all bytes that follow.

        Raises:
            CorruptSourceError: the file or the archive is damaged, or ends before `last`.
        """
        store = self._store
        file, member = (store.files or {}).get(key), (store.members or {}).get(key)
        if file is not None:
            with _reading(file.name), file.open() as stream:
                return _part(stream, first, last, file.size, file.name)
        if member is None or store.archive is None:
            return None
        with _reading(store.place(key)):
            check_member(member, store.place(key), other_method=_OTHER_METHOD, impossible_size=_DOWNLOAD_AGAIN)
            if self._archive is None:
                self._archive = self._open.enter_context(
                    zipfile.ZipFile(self._open.enter_context(store.archive.open()))
                )
            with self._archive.open(member) as stream:
                return _part(stream, first, last, member.file_size, store.place(key))


def _part(stream: IO[bytes], first: int, last: int | None, size: int, place: str) -> bytes:
    first, last = max(0, size + first) if first < 0 else first, size if last is None else last
    if first > last or last > size:
        raise CorruptSourceError(
            f"has {size} bytes, where its index names the bytes {first} to {last}", file=place, hint=_DOWNLOAD_AGAIN
        )
    if first:
        stream.seek(first)
    data = stream.read(last - first)
    if len(data) != last - first:
        raise CorruptSourceError(
            f"has {first + len(data)} bytes, but had {size} before",
            file=place,
            hint="do not change the source while it is read",
        )
    return data


def _reading(place: str) -> AbstractContextManager[None]:
    """Converts the errors of files and of zipfile to CorruptSourceError."""
    return errors_as(
        ARCHIVE_ERRORS, lambda error: CorruptSourceError(f"cannot be read: {error}", file=place, hint=_DOWNLOAD_AGAIN)
    )
