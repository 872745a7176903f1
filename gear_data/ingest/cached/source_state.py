"""What a source is, and the state that it is in: the key of its conversion in the cache."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import xxhash

from gear_data.common.paths import absolute_path, is_remote, missing_hint
from gear_data.errors import SourceNotFoundError
from gear_data.ingest.cached.contents import contents_hash
from gear_data.ingest.convert_options import ConvertOptions
from gear_data.ingest.location import SourceFile, hub_commit, is_hub_name, locate_files
from gear_data.ingest.several.parts import plain_source
from gear_data.ingest.videos.storage_options import video_storage
from gear_data.storage.manifest import FORMAT_VERSION
from gear_data.storage.remote.range_reader import filesystem_of
from gear_data.version import VERSION

_CHUNK = 8 << 20


@dataclass(frozen=True, eq=False)
class CachedSource:
    """A source, and the options with which it is converted.

    Attributes:
        source: an absolute path, a URL, a hub id, a tuple of several of them, or an object in memory.
        options: the options of its conversion.
    """

    source: Any
    options: ConvertOptions

    @property
    def places(self) -> tuple[str, ...]:
        """The paths, URLs and hub ids; empty for an object in memory."""
        if isinstance(self.source, str):
            return (self.source,)
        return self.source if isinstance(self.source, tuple) and isinstance(self.source[0], str) else ()

    @property
    def name(self) -> str:
        """The name of the source, for people."""
        return ", ".join(self.places) or f"{type(self.source).__name__} in memory"

    def origin(self) -> str:
        """Returns a hash of the places and the options. It stays when the source changes."""
        return _hash([VERSION, FORMAT_VERSION, self.places or "memory", self.options.to_json()])

    def state(self) -> str | None:
        """Returns a hash that changes when the source changes; None if only reading the source says what it holds.

        It covers the names, sizes and modification times of files, their ETags at a URL, the commit of a hub dataset,
        and the contents of objects in memory.

        Raises:
            SourceNotFoundError: the source does not exist.
            RemoteError: the server cannot be reached.
        """
        if not self.places:
            return contents_hash(self.source)
        return _hash([self._place_state(place) for place in self.places])

    def _place_state(self, place: str) -> Any:
        if is_hub_id(place):
            return hub_commit(place)
        if is_remote(place):
            # fsspec's cached listings miss what other processes wrote.
            filesystem_of(place)[0].invalidate_cache()
        location = locate_files(place, follow_links=self.options.follow_links)
        files = list(location.files)
        if cameras := video_storage(self.options.videos).cameras:
            from gear_data.ingest.videos.video_columns import find_files

            files += [file for pattern in cameras.values() for file in find_files(location, pattern)]
        return [[file.name, file.size, _stamp(file)] for file in files]


def cached_source(source: Any, options: ConvertOptions) -> CachedSource:
    """Returns a source with absolute paths.

    Raises:
        InvalidArgumentError: it is no source.
    """
    source = plain_source(source)
    if isinstance(source, str):
        source = _absolute(source)
    elif isinstance(source, tuple) and source and isinstance(source[0], str):
        source = tuple(map(_absolute, source))
    return CachedSource(source, options)


def is_hub_id(text: str, folder: str = "") -> bool:
    """Returns whether a text names a dataset on the hub: it has the form USER/NAME, and there is no folder USER.

    Args:
        text: a text.
        folder: the folder to which a path would be relative; the current folder by default.
    """
    return is_hub_name(text) and not os.path.lexists(os.path.join(folder, text.partition("/")[0]))


def _absolute(place: str) -> str:
    if is_remote(place) or is_hub_id(place):
        return place
    if not os.path.exists(place):
        raise SourceNotFoundError("no such file or folder", file=place, hint=missing_hint(place))
    return absolute_path(place)


def _stamp(file: SourceFile) -> str:
    """Returns a text that changes when a file changes: its contents' hash, if its server says nothing."""
    if file.stamp:
        return file.stamp
    digest = xxhash.xxh3_128()
    with file.open() as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return str(digest.hexdigest())


def _hash(value: Any) -> str:
    return str(xxhash.xxh3_64_hexdigest(json.dumps(value).encode()))
