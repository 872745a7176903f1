"""The identity of a dataset: readers compare it with the dataset that they opened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import xxhash

from gear_data.errors import DatasetReplacedError
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


class OpenedDataset:
    """The dataset that some files were opened as; unknown until its manifest is read.

    Args:
        identity: the dataset's identity, in a process that opens a pickled dataset again.
    """

    def __init__(self, identity: str | None = None) -> None:
        self._identity = identity
        self._manifest: Manifest | None = None

    @property
    def is_known(self) -> bool:
        """Whether a manifest was read, in this process or before pickling."""
        return self._identity is not None or self._manifest is not None

    @property
    def identity(self) -> str | None:
        """The dataset's identity; None if it is unknown."""
        if self._identity is None and self._manifest is not None:
            # Computed late: few datasets are pickled or replaced, and a manifest may list many shards.
            self._identity = dataset_identity(self._manifest)
        return self._identity

    def admit(self, manifest: Manifest, location: object) -> Manifest:
        """Returns a manifest if it is of the opened dataset.

        The first manifest decides which dataset this is.

        Raises:
            DatasetReplacedError: the manifest is of another dataset.
        """
        if not self.is_known:
            self._manifest = manifest
        elif dataset_identity(manifest) != self.identity:
            raise replaced_error(location)
        return manifest


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
