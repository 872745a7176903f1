"""The files of a dataset as its readers see them.

They are in a local folder, or at a URL and cached on first use.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gear_data.common.paths import is_remote, join, plain_path
from gear_data.errors import (
    CorruptShardError,
    DatasetNotFoundError,
    DatasetReplacedError,
    GearError,
    GenerationGoneError,
    RemoteError,
)
from gear_data.storage.generations.growth import JOURNALS, generation_file
from gear_data.storage.generations.leases import Lease, take_lease
from gear_data.storage.identity import FileStamp, OpenedDataset, Version, file_stamp, generation_gone, replaced_error
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, not_a_dataset
from gear_data.storage.mapped_files import MappedFiles
from gear_data.storage.mapped_shards import check_file_size, check_size
from gear_data.storage.remote.cache import ShardCache, default_folder
from gear_data.storage.writing.progress_files import PROGRESS

_COPY_BYTES = 32 << 20
_SEAL = "call seal or close of any Writer of this URL, or wait for it with open(..., follow=True)"
#: The folder of sidecars, in the folder of a dataset.
SIDECARS = "sidecars"


class DatasetFiles(Protocol):
    """Files of a dataset. Implementations can be pickled.

    The first call of `manifest` binds them to one dataset. From then on, no method gives a file of another dataset that
    took its place. Files that are open or mapped already go on as they were.

    Attributes:
        mapped: files that this process has mapped. A caller that maps a file from `local` adds the file.
    """

    mapped: MappedFiles

    @property
    def location(self) -> Path | str:
        """Folder of the dataset: a path, or a URL as text."""

    def manifest(self) -> Manifest:
        """Reads and checks the manifest.

        Raises:
            GearError: the errors of `Manifest.load`, and RemoteError.
            DatasetReplacedError: an earlier call read the manifest of another dataset.
        """

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        """Checks that every listed file exists and has its size. Reads no contents.

        Args:
            manifest: manifest of the dataset.
            bad: names of files that are not checked.

        Raises:
            CorruptShardError: a file is missing or has another size.
            DatasetReplacedError: the dataset was replaced.
        """

    def local(self, entry: FileEntry) -> AbstractContextManager[Path]:
        """Yields a local path of a file.

        It exists while the block runs; mappings stay valid afterwards. The end of the block checks that the dataset was
        not replaced before the file was opened. Until then, the block's results must not be used.

        Raises:
            DatasetReplacedError: the dataset was replaced. Raised in place of any error of the block.
            CorruptShardError: the file is missing or has another size, or the fetched bytes fail the checksum.
            RemoteError: the file cannot be fetched.
        """

    def name(self, entry: FileEntry) -> str:
        """Returns the path or URL of a file, for messages."""

    def identity(self, entry: FileEntry) -> list[Any]:
        """Returns a JSON-able value that identifies this copy of a file.

        Copies in different places have different values, even if their checksums are equal.

        Raises the errors of `local`.
        """

    def sidecars(self, contents: str) -> Path:
        """Returns the folder for sidecars. `contents` is a hash of their inputs."""

    def at(self, generation: int | None = None) -> DatasetFiles:
        """Returns the files of another generation of the same dataset; None: the newest one."""


class FolderFiles:
    """Files in a folder of this machine or of a mounted file system.

    Args:
        folder: folder of the dataset.
        opened: the dataset that the files belong to, if it was opened before.
        generation: of a dataset that grows; None: the newest one.
        videos: keeps what is fetched of video files at URLs; None: the default cache.

    Attributes:
        mapped: see `DatasetFiles`.
        videos: the cache of video files at URLs.
    """

    def __init__(
        self,
        folder: Path,
        opened: Version | None = None,
        generation: int | None = None,
        videos: ShardCache | None = None,
    ) -> None:
        self.videos = ShardCache(default_folder(), None) if videos is None else videos
        self._folder = folder
        self._opened = OpenedDataset(opened)
        self._generation = generation
        #: Keeps the files of the generation.
        self._lease: Lease | None = None
        #: Stamp of a manifest of the opened dataset.
        self._stamp: FileStamp | None = None
        # Not a bound method: the cycle would keep the lease after the last reader is gone.
        self.mapped = MappedFiles(partial(_check_unchanged, weakref.ref(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FolderFiles, (self._folder, self._opened.version, self._generation, self.videos))

    @property
    def location(self) -> Path:
        return self._folder

    def manifest(self) -> Manifest:
        # Taken before reading: a manifest that is replaced meanwhile is read again at the next check.
        stamp = file_stamp(self._folder / MANIFEST_NAME)
        newest = self._leased() if self._lease is None else Manifest.load(self._folder)
        manifest = self._opened.admit(newest, self._folder, self._earlier)
        self._stamp = stamp
        return manifest

    def at(self, generation: int | None = None) -> FolderFiles:
        return FolderFiles(self._folder, generation=generation, videos=self.videos)

    def _leased(self) -> Manifest:
        """Returns the newest manifest, or that of the generation that was asked for.

        Takes a lease of the generation that is opened, so that its files stay.
        """
        version = self._opened.version
        wanted = self._generation if version is None else version.generation
        while True:
            lease = take_lease(self._folder / MANIFEST_NAME)
            manifest = Manifest.load(self._folder)
            if wanted is not None and wanted != manifest.generation:
                lease = take_lease(self._folder / generation_file(wanted))
                if version is None:
                    manifest = self._earlier(wanted)
            # Without this check, a publisher may have replaced the file after the lease.
            if lease is None or lease.is_current():
                self._lease = lease
                return manifest

    def _earlier(self, generation: int) -> Manifest:
        try:
            return Manifest.load(self._folder, generation_file(generation))
        except DatasetNotFoundError:
            raise generation_gone(generation, self._folder) from None

    def check_unchanged(self) -> None:
        """Checks that the folder still has the dataset that was opened.

        Writers replace or remove the manifest before they touch another file. So a file that was opened before this
        check belongs to the opened dataset. Without an opened dataset there is nothing to check.

        Raises:
            DatasetReplacedError: the dataset was replaced or removed.
        """
        if not self._opened.is_known or (self._stamp and file_stamp(self._folder / MANIFEST_NAME) == self._stamp):
            return
        try:
            self.manifest()
        except DatasetReplacedError:
            raise
        except GearError as error:
            raise replaced_error(self._folder) from error

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        with self._bound():
            for entry in manifest.files:
                if entry.file not in bad:
                    check_size(self._folder, entry)

    @contextmanager
    def local(self, entry: FileEntry) -> Iterator[Path]:
        with self._bound():
            check_size(self._folder, entry)
            yield self._folder / entry.file

    @contextmanager
    def _bound(self) -> Iterator[None]:
        """Checks at the end of the block that the dataset was not replaced.

        A replaced dataset explains errors of the block.
        """
        try:
            yield
        except Exception:
            self.check_unchanged()
            raise
        self.check_unchanged()

    def name(self, entry: FileEntry) -> str:
        return str(self._folder / entry.file)

    def identity(self, entry: FileEntry) -> list[Any]:
        with self._bound():
            check_size(self._folder, entry)
            path = Path(os.path.realpath(self._folder / entry.file))
            status = path.stat()
            return [str(path), status.st_ino, status.st_mtime_ns]

    def sidecars(self, contents: str) -> Path:
        return self._folder / SIDECARS


def _check_unchanged(files: weakref.ref[FolderFiles]) -> None:
    """Calls `check_unchanged`, as long as somebody uses the files."""
    if (alive := files()) is not None:
        alive.check_unchanged()


class CachedFiles:
    """Files at a URL, fetched into a cache of this machine.

    The cache finds files by their checksums, so a cached file is always of the opened dataset.

    Args:
        url: URL of the dataset.
        cache: the cache.
        opened, generation: see `FolderFiles`.
        newest: a manifest that was read before, with its etag. It is read again if the etag changed.

    Attributes:
        mapped: see `DatasetFiles`.
    """

    def __init__(
        self,
        url: str,
        cache: ShardCache,
        opened: Version | None = None,
        generation: int | None = None,
        newest: tuple[str, Manifest] | None = None,
    ) -> None:
        # Local datasets do not need it.
        from gear_data.storage.remote.object_store import ObjectStore

        self._store = ObjectStore(url)
        self._cache = cache
        self._opened = OpenedDataset(opened)
        self._generation = generation
        self._newest = newest
        # The cache sets the times of its files.
        self.mapped = MappedFiles(lambda: None, times=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CachedFiles, (self._store.name, self._cache, self._opened.version, self._generation))

    @property
    def location(self) -> str:
        return self._store.name

    def manifest(self) -> Manifest:
        manifest, wanted = self._read_newest(), self._generation
        if not self._opened.is_known and wanted is not None and wanted != manifest.generation:
            manifest = self._earlier(wanted)
        return self._opened.admit(manifest, self.location, self._earlier)

    def at(self, generation: int | None = None) -> CachedFiles:
        return CachedFiles(self._store.name, self._cache, generation=generation, newest=self._newest)

    def _read_newest(self) -> Manifest:
        """Returns the newest manifest. An unchanged etag saves the transfer."""
        try:
            etag = self._store.etag(MANIFEST_NAME)
            if self._newest is None or etag is None or etag != self._newest[0]:
                manifest = self._parsed(MANIFEST_NAME)
                # The file may have been replaced after its etag was read. Then the next call reads it again.
                self._newest = (etag or "", manifest)
        except FileNotFoundError as error:
            files = self._store.files()
            if any(file.startswith(f"{JOURNALS}/") for file in files):
                reason = "a Writer records here, and no generation was published"
                raise DatasetNotFoundError(reason, file=self._store.name, hint=_SEAL) from error
            unfinished = any(file.startswith(f"{PROGRESS}/") for file in files)
            raise not_a_dataset(self._store.name, exists=bool(files), unfinished=unfinished) from error
        return self._newest[1]

    def _earlier(self, generation: int) -> Manifest:
        try:
            return self._parsed(generation_file(generation))
        except FileNotFoundError:
            raise generation_gone(generation, self.location) from None

    def _parsed(self, file: str) -> Manifest:
        return Manifest.from_bytes(self._store.read(file), join(self._store.name, file))

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        with self._explained():
            sizes = self._store.sizes()
            for entry in manifest.files:
                if entry.file not in bad:
                    check_file_size(self.name(entry), sizes.get(entry.file), entry)

    @contextmanager
    def local(self, entry: FileEntry) -> Iterator[Path]:
        def download(file: BinaryIO) -> None:
            with self._store.reader(entry.file, entry.bytes) as source:
                shutil.copyfileobj(source, file, _COPY_BYTES)

        with self._explained(), self._cache.use(entry, download, self.name(entry)) as path:
            yield path

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Replaces errors of the block that a replaced dataset causes."""
        try:
            yield
        except (CorruptShardError, RemoteError) as error:
            # After an outage of the server, reading the manifest would only fail for as long again.
            if isinstance(error, RemoteError) and type(error.__cause__) not in (FileNotFoundError, ConnectionError):
                raise
            try:
                self.manifest()
                version = self._opened.version
                if version is not None and version.generation != self._read_newest().generation:
                    self._earlier(version.generation)
            except (DatasetReplacedError, GenerationGoneError):
                raise
            except DatasetNotFoundError:
                raise replaced_error(self.location) from error
            except GearError:
                pass  # the first error says more
            raise

    def name(self, entry: FileEntry) -> str:
        return join(self._store.name, entry.file)

    def identity(self, entry: FileEntry) -> list[Any]:
        return [self._store.name]

    def sidecars(self, contents: str) -> Path:
        return self._cache.folder / SIDECARS / contents

    @property
    def cache(self) -> ShardCache:
        """The cache that keeps fetched files."""
        return self._cache

    def holds(self, entry: FileEntry) -> bool:
        """Returns whether a file is in the cache."""
        return self._cache.holds(entry)

    def mark_used(self, entry: FileEntry) -> bool:
        """Marks a file as used now. See `ShardCache.mark_used`."""
        return self._cache.mark_used(entry)


def cache_of(files: DatasetFiles) -> ShardCache | None:
    """Returns the cache that keeps fetched files of a dataset at a URL; None of other datasets."""
    return getattr(files, "cache", None)


def open_files(
    path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | None = None
) -> DatasetFiles:
    """Returns the files of a dataset at a path or a URL.

    Args:
        path: path or URL of the dataset.
        cache_dir: cache folder for files at URLs; None is `default_folder`.
        cache_bytes: size limit of the cache; see `ShardCache`.

    Raises:
        InvalidArgumentError: `path` or `cache_bytes` cannot be used.
        MissingExtraError: the package for this kind of URL is not installed.
    """
    text = plain_path(path)
    cache = ShardCache(default_folder() if cache_dir is None else Path(cache_dir), cache_bytes)
    return CachedFiles(text, cache) if is_remote(text) else FolderFiles(Path(text), videos=cache)
