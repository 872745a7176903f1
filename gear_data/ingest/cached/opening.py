"""Opens a source: converts it into the cache if it is not there, once for all processes of this machine."""

from __future__ import annotations

import logging
import os
import re
import shlex
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from gear_data.common.keywords import check_group
from gear_data.common.paths import is_remote
from gear_data.common.retry import is_unreachable
from gear_data.errors import (
    CorruptShardError,
    DestinationExistsError,
    GearError,
    RemoteError,
    ResumeError,
    SourceChangedError,
    SourceNotFoundError,
    StorageFullError,
    UnwritableError,
)
from gear_data.ingest.cached.contents import repeatable
from gear_data.ingest.cached.entries import CONVERSIONS, EntryHeader, clear_entry, mark_used, read_header, remove_entry
from gear_data.ingest.cached.source_state import CachedSource, cached_source, is_hub_id
from gear_data.ingest.convert_options import ConvertOptions
from gear_data.ingest.location import locate_files
from gear_data.storage.generations.growth import GENERATIONS, JOURNALS
from gear_data.storage.generations.leases import Lease, take_lease
from gear_data.storage.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest
from gear_data.storage.remote.cache import default_folder
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.folder_lock import folder_lock
from gear_data.storage.writing.progress_files import PROGRESS
from gear_data.version import VERSION

#: Names in a folder, of which each set is only in a dataset: also in one that is unfinished, or lacks its manifest.
_OF_DATASETS = ({PROGRESS}, {JOURNALS}, {"shards", "episodes.arrow"}, {"shards", GENERATIONS})
_AGAIN = "open the source again: the conversion continues from there"
_OPTIONS = "options of the conversion of a source that is opened: convert=gear_data.ConvertOptions(...), or --convert"
_NAME_LENGTH = 64

_log = logging.getLogger(__name__)


def may_be_source(path: Any) -> bool:
    """Returns whether a path, a URL or an object that is no dataset is a source.

    A path that does not exist is none, and neither are an empty folder, an unfinished conversion, a folder in which a
    Writer records, and a folder of datasets.
    """
    if not isinstance(path, str | os.PathLike):
        return True
    text = os.fspath(path)
    if is_remote(text):
        return _is_source_folder(text)
    if os.path.isdir(text):
        return not os.path.isdir(f"{text.rstrip(os.sep)}.journal") and _is_source_folder(text)
    return os.path.exists(text) or (isinstance(path, str) and is_hub_id(text))


def _is_source_folder(text: str) -> bool:
    try:
        if is_remote(text):
            names = {name.partition("/")[0] for name in open_file_store(text).files()}
            if not names:
                return bool(locate_files(text).files)  # one file
        else:
            with os.scandir(text) as found:
                entries = list(found)
            names = {entry.name for entry in entries}
            if any(entry.is_dir() and _is_dataset_folder(entry.path) for entry in entries):
                return False
    except (PermissionError, SourceNotFoundError):
        return False
    return bool(names) and not any(each <= names for each in _OF_DATASETS)


def _is_dataset_folder(path: str) -> bool:
    return all(os.path.exists(os.path.join(path, name)) for name in (MANIFEST_NAME, "shards"))


@contextmanager
def source_dataset(
    source: Any,
    options: ConvertOptions | None,
    cache_dir: str | os.PathLike[str] | None,
    failure: RemoteError | None = None,
) -> Iterator[Path]:
    """Yields the folder of a source's dataset in the cache. It is not removed while the block runs.

    Args:
        source: the source, as in `convert`.
        options: the options of its conversion.
        cache_dir: the folder of the cache; None is `default_folder`.
        failure: the error of an earlier request to the server of the source. The server is not asked again: only an
            earlier conversion can be yielded.

    Raises:
        RemoteError: the server cannot be reached, and the cache has no conversion of the source.
        SourceChangedError: the source changed while it was converted.
        StorageFullError, UnwritableError: the cache cannot be written to.
        GearError: the errors of `convert`.
    """
    options = ConvertOptions() if options is None else options
    check_group("convert", options, ConvertOptions)
    folder = default_folder() if cache_dir is None else Path(cache_dir)
    found = cached_source(repeatable(source), options.with_linked_videos())
    while True:
        entry = _Entry(folder / CONVERSIONS, found, failure)
        lease = entry.lease() or entry.make()
        if lease is not None:
            mark_used(entry.folder)
            yield entry.dataset
            return


class _Entry:
    """The entry of a source in the cache.

    Args:
        folder: the folder of all entries.
        source: the source.
        failure: see `source_dataset`.

    Attributes:
        folder: the folder of the entry.
        dataset: the folder of the dataset.
    """

    def __init__(self, folder: Path, source: CachedSource, failure: RemoteError | None) -> None:
        self._entries, self._source = folder, source
        self._origin = source.origin()
        self._state = self._read_state(failure)
        self._place(self._state or f"new-{uuid.uuid4().hex}")

    def _place(self, state: str) -> None:
        self.folder = self._entries / f"{self._origin}-{state}"
        self.dataset = self.folder / _dataset_name(self._source)

    def _read_state(self, failure: RemoteError | None) -> str | None:
        try:
            if failure is not None:
                raise failure
            return self._source.state()
        except (SourceNotFoundError, RemoteError) as error:
            # As `datasets` does: a server that cannot be reached does not keep one from what was converted.
            earlier = self._earlier() if is_unreachable(error) else []
            if not earlier:
                raise
            folder, header = max(earlier, key=lambda each: each[1].created)
            server = "the hub" if any(map(_is_of_hub, self._source.places)) else "its server"
            _log.warning("%s: cannot reach %s; using the conversion of %s", self._source.name, server, header.created)
            return folder.name.removeprefix(f"{self._origin}-")

    def _earlier(self) -> list[tuple[Path, EntryHeader]]:
        """Returns the finished entries of this source and these options, in whatever state it was."""
        found = ((folder, read_header(folder)) for folder in self._entries.glob(f"{self._origin}-*"))
        return [(folder, header) for folder, header in found if header is not None]

    def lease(self) -> Lease | None:
        """Returns a lease of the dataset; None if it is not there."""
        return take_lease(self.dataset / MANIFEST_NAME) if read_header(self.folder) is not None else None

    def make(self) -> Lease | None:
        """Converts the source, unless another process does, and returns a lease; None to try again."""
        try:
            with folder_lock(self.folder, name=self._source.name, hint="", wait=True) as lock:
                if (lease := self.lease()) is not None:
                    return lease
                self._announce()
                manifest = self._convert()
                self._check_unchanged()
                lock.check()
                self._header().write(self.folder)
                if self._state is None:
                    self._take_place(manifest)
                return self.lease()
        except (StorageFullError, UnwritableError) as error:
            way_out = "set $GEAR_DATA_CACHE (cache_dir=) to another folder"
            if isinstance(error, StorageFullError):
                prune = f"gear-data cache prune --max-bytes 0 --folder {shlex.quote(str(self._entries.parent))}"
                way_out = f"free some space, such as by `{prune}`; or {way_out}"
            error.hint = f"the source is converted into the cache {self._entries.parent}: {way_out}"
            raise

    def _announce(self) -> None:
        if self._source.places and (earlier := self._earlier()):
            created = max(header.created for _, header in earlier)
            _log.warning("%s: changed since it was converted, %s; converting it again", self._source.name, created)
        else:
            _log.info("%s: converting it into %s", self._source.name, self.dataset)

    def _convert(self) -> Manifest:
        # Imports the readers of all formats.
        from gear_data.ingest.convert import RunOptions, run_conversion

        options = self._source.options
        run = RunOptions(
            resume=True,
            engine=options.engine,
            jobs=options.jobs,
            progress=options.progress,
            again=_AGAIN,
            whole_videos=False,
        )
        try:
            try:
                return run_conversion(options.spec(self._source.source), str(self.dataset), run)
            except (ResumeError, CorruptShardError, DestinationExistsError):
                # Left by another version, damaged, or left by a removal that was killed.
                clear_entry(self.folder)
                return run_conversion(options.spec(self._source.source), str(self.dataset), run)
        except GearError as error:
            if error.hint and "--" in error.hint:
                error.hint += f"\n  {_OPTIONS}"
            if self._state is None:
                clear_entry(self.folder)  # nobody continues it
            elif not isinstance(error, StorageFullError | UnwritableError):
                self._check_unchanged(error)
            raise

    def _check_unchanged(self, cause: GearError | None = None) -> None:
        """Raises SourceChangedError if the source is in another state than at the start.

        Args:
            cause: the error with which the conversion failed.
        """
        try:
            if self._state is None or self._source.state() == self._state:
                return
        except GearError:
            if cause is not None:
                return  # the first error says more
            raise
        clear_entry(self.folder)
        raise SourceChangedError(
            "changed while it was converted", file=self._source.name, hint="open it again when nothing writes to it"
        ) from cause

    def _header(self) -> EntryHeader:
        created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        options = self._source.options.to_json()
        return EntryHeader(VERSION, FORMAT_VERSION, self._source.name, self._source.places, options, created)

    def _take_place(self, manifest: Manifest) -> None:
        """Names the entry by the contents of its dataset. If there is such an entry, this one is removed."""
        new = self.folder
        listed = [f"{entry.file} {entry.checksum}" for entry in manifest.files]
        text = "\n".join([*listed, str(manifest.provenance.get("metadata"))])
        self._place(xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass")))
        if read_header(self.folder) is None:
            remove_entry(self.folder)  # unfinished
        try:
            os.rename(new, self.folder)
        except OSError:
            clear_entry(new)


def _is_of_hub(place: str) -> bool:
    return is_hub_id(place) or place.startswith("hf://")


def _dataset_name(source: CachedSource) -> str:
    """Returns the name of the dataset's folder, from the last part of the source's path."""
    places = [place.rstrip("/").rpartition("/")[2] for place in source.places] or [type(source.source).__name__]
    name = re.sub(r"[^\w.-]+", "-", "+".join(places))[:_NAME_LENGTH].strip(".-")
    return name or "dataset"
