"""The identity of a dataset: readers compare it with the dataset that they opened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from gear_data.errors import DatasetNotFoundError, DatasetReplacedError, GenerationGoneError
from gear_data.storage.manifest import Manifest


def dataset_identity(manifest: Manifest) -> str:
    """Returns a hash of everything that readers of a dataset depend on.

    It covers the contents, the statistics, and the layout of the files. It leaves out the provenance and the findings.
    So a copy has the same identity, and a second conversion of the same source has it too.
    """
    known = [
        manifest.fingerprint,
        manifest.schema.to_json(),
        {name: msgspec.to_builtins(entry) for name, entry in manifest.tables.items()},
        {name: item.to_json() for name, item in manifest.statistics.items()},
        [shard.to_json() for shard in manifest.shards],
    ]
    return str(xxhash.xxh3_128(json.dumps(known).encode()).hexdigest())


@dataclass(frozen=True)
class Version:
    """One version of a dataset.

    Attributes:
        identity: see `dataset_identity`.
        growth: `Growth.id` of a dataset that grows; None for other datasets.
        generation: number of the generation.
    """

    identity: str
    growth: str | None
    generation: int


class OpenedDataset:
    """The dataset that some files were opened as; unknown until its manifest is read.

    A dataset that grows stays the generation that was opened.

    Args:
        version: the dataset, in a process that opens a pickled dataset again.
    """

    def __init__(self, version: Version | None = None) -> None:
        self._version = version
        self._manifest: Manifest | None = None

    @property
    def is_known(self) -> bool:
        """Whether a manifest was read, in this process or before pickling."""
        return self._version is not None or self._manifest is not None

    @property
    def version(self) -> Version | None:
        """The dataset's version; None if it is unknown."""
        if self._version is None and (manifest := self._manifest) is not None:
            # Computed late: few datasets are pickled or replaced, and a manifest may list many shards.
            growth = None if manifest.growth is None else manifest.growth.id
            self._version = Version(dataset_identity(manifest), growth, manifest.generation)
        return self._version

    def admit(self, manifest: Manifest, location: object, earlier: Callable[[int], Manifest] | None = None) -> Manifest:
        """Returns a manifest if it is of the opened dataset.

        The first manifest decides which dataset this is.

        Args:
            manifest: the newest manifest.
            location: place of the dataset, for errors.
            earlier: reads the manifest of a generation. None: only the newest one can be read.

        Returns:
            The manifest of the generation that was opened.

        Raises:
            DatasetReplacedError: the manifest is of another dataset.
            GenerationGoneError: the generation that was opened is no longer on disk.
        """
        version = self.version
        if version is None:
            self._manifest = manifest
        elif self._manifest is None or not _is_later(manifest, version):
            if _is_later(manifest, version):
                manifest = self._reread(version, location, earlier)
            if dataset_identity(manifest) != version.identity:
                raise replaced_error(location)
            self._manifest = manifest
        elif _contradict(manifest, self._manifest):
            raise replaced_error(location)
        return self._manifest if self._manifest is not None else manifest

    def _reread(self, version: Version, location: object, earlier: Callable[[int], Manifest] | None) -> Manifest:
        try:
            if earlier is not None:
                return earlier(version.generation)
        except DatasetNotFoundError:
            pass
        raise generation_gone(version.generation, location)


def _is_later(manifest: Manifest, version: Version) -> bool:
    """Returns whether a manifest is a later generation of a dataset."""
    growth = manifest.growth
    if growth is None or growth.generation <= version.generation:
        return False
    return growth.id == version.growth or growth.base == version.identity


def _contradict(manifest: Manifest, other: Manifest) -> bool:
    """Returns whether two manifests list different files of one name, as copies do that grew in two places."""
    known = {entry.file: entry for entry in manifest.files}
    return any(known.get(entry.file, entry) != entry for entry in other.files)


def check_same_dataset(manifest: Manifest, other: Manifest, location: object) -> None:
    """Checks that two manifests are of generations of one dataset.

    Raises:
        DatasetReplacedError: they are of different datasets.
    """
    first, last = sorted((manifest, other), key=lambda each: each.generation)
    if first.growth is None and last.growth is not None:
        same = last.growth.base == dataset_identity(first)
    elif first.growth is not None and last.growth is not None:
        same = first.growth.id == last.growth.id and not _contradict(first, last)
    else:
        same = dataset_identity(first) == dataset_identity(last)
    if not same:
        raise replaced_error(location)


def generation_gone(generation: int, location: object) -> GenerationGoneError:
    """Returns the error for a generation that is no longer on disk."""
    return GenerationGoneError(
        f"generation {generation} is no longer on disk: nobody was reading it, and the dataset grew",
        file=str(location),
        hint="open the dataset again, for its newest generation",
    )


def replaced_error(location: object) -> DatasetReplacedError:
    """Returns the error for a place that no longer has the dataset that was opened."""
    return DatasetReplacedError(
        "the dataset was replaced or removed after it was opened", file=str(location), hint="open the dataset again"
    )


#: Device, inode, size, and times of the last write and of the last change.
FileStamp = tuple[int, int, int, int, int]


def file_stamp(path: Path) -> FileStamp | None:
    """Returns numbers that change when a file is written or replaced.

    Returns None if the file cannot be found.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
