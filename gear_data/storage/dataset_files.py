"""The files of a dataset as its readers see them: in a folder, or at a URL and fetched when they are needed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gear_data.errors import ManifestError
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, not_a_dataset
from gear_data.storage.reader import check_file_size, check_size
from gear_data.storage.remote.cache import ShardCache, default_folder
from gear_data.storage.remote.files import is_remote, join, plain_path
from gear_data.storage.remote.object_store import ObjectStore
from gear_data.storage.writing.progress_files import PROGRESS

_COPY_BYTES = 32 << 20


class DatasetFiles(Protocol):
    """A dataset's files. Can be pickled.

    Attributes:
        place: the dataset's folder: a path, or a URL as text.
    """

    @property
    def place(self) -> Path | str: ...

    def manifest(self) -> Manifest:
        """Reads and checks the manifest. Raises as `Manifest.load` does, and RemoteError."""

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        """That every file the manifest lists is there with its size, but for `bad` ones. Reads none of them.

        Raises:
            CorruptShardError: one is missing, or of another size.
        """

    def local(self, entry: FileEntry) -> AbstractContextManager[Path]:
        """A file of the manifest on this machine, there as long as the body runs; what was mapped stays mapped.

        Raises:
            CorruptShardError: it is missing, or of another size, or was fetched and is not what the manifest says.
            RemoteError: it cannot be fetched.
        """

    def name(self, entry: FileEntry) -> str:
        """A file's path or URL, for messages."""

    def identity(self, entry: FileEntry) -> list[Any]:
        """JSON-able: of two files of one checksum, whether they are the same one. Raises as `local` does."""

    def sidecars(self, contents: str) -> Path:
        """The folder for what is worked out from the dataset. `contents`: hash of what it is worked out from."""


class FolderFiles:
    """Those of a folder of this machine, or of a file system mounted here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> Path:
        return self._folder

    def manifest(self) -> Manifest:
        return Manifest.load(self._folder)

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        for entry in manifest.files:
            if entry.file not in bad:
                check_size(self._folder, entry)

    @contextmanager
    def local(self, entry: FileEntry) -> Iterator[Path]:
        check_size(self._folder, entry)
        yield self._folder / entry.file

    def name(self, entry: FileEntry) -> str:
        return str(self._folder / entry.file)

    def identity(self, entry: FileEntry) -> list[Any]:
        check_size(self._folder, entry)
        path = Path(os.path.realpath(self._folder / entry.file))
        found = path.stat()
        return [str(path), found.st_ino, found.st_mtime_ns]

    def sidecars(self, contents: str) -> Path:
        return self._folder / "sidecars"


class CachedFiles:
    """Those at a URL, in a cache of this machine."""

    def __init__(self, url: str, cache: ShardCache) -> None:
        self._store = ObjectStore(url)
        self._cache = cache

    @property
    def place(self) -> str:
        return self._store.name

    def manifest(self) -> Manifest:
        name = join(self._store.name, MANIFEST_NAME)
        try:
            text = self._store.read(MANIFEST_NAME).decode("utf-8")
        except FileNotFoundError as error:
            files = self._store.files()
            unfinished = any(file.startswith(f"{PROGRESS}/") for file in files)
            raise not_a_dataset(self._store.name, exists=bool(files), unfinished=unfinished) from error
        except UnicodeDecodeError as error:
            raise ManifestError(f"cannot be read: {error}", file=name) from error
        return Manifest.from_text(text, name)

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        sizes = self._store.sizes()
        for entry in manifest.files:
            if entry.file not in bad:
                check_file_size(self.name(entry), sizes.get(entry.file), entry)

    @contextmanager
    def local(self, entry: FileEntry) -> Iterator[Path]:
        def fetch(file: BinaryIO) -> None:
            with self._store.reader(entry.file, entry.bytes) as source:
                shutil.copyfileobj(source, file, _COPY_BYTES)

        with self._cache.use(entry, fetch, self.name(entry)) as path:
            yield path

    def name(self, entry: FileEntry) -> str:
        return join(self._store.name, entry.file)

    def identity(self, entry: FileEntry) -> list[Any]:
        return [self._store.name]

    def sidecars(self, contents: str) -> Path:
        return self._cache.folder / "sidecars" / contents

    def holds(self, entry: FileEntry) -> bool:
        """Whether a file is in the cache."""
        return self._cache.holds(entry)

    def mark_used(self, entry: FileEntry) -> bool:
        """See `ShardCache.mark_used`."""
        return self._cache.mark_used(entry)


def open_files(
    path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | None = None
) -> DatasetFiles:
    """The files of a dataset at a path or a URL. The cache, by default in `default_folder`, is for URLs alone.

    Raises:
        InvalidArgumentError, MissingExtraError: a URL, or a limit, that cannot be used.
    """
    text = plain_path(path)
    if is_remote(text):
        return CachedFiles(text, ShardCache(default_folder() if cache_dir is None else Path(cache_dir), cache_bytes))
    return FolderFiles(Path(text))
