"""Residency: the memory that holds the bytes of the columns.

`mmap`: the page cache; shards are mapped at first use. `host`: one copy in memory that all processes of this machine
share. `pinned`: such a copy, registered so that a GPU reads it in place. `device`: a GPU's memory. `tiered`: each
part of the columns where a `ResidencyPlan` puts it.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
import pyarrow as pa

from gear_data.errors import unknown_name
from gear_data.residency.column_overlay import OverlayShards
from gear_data.residency.device.columns import ColumnsCopy, DeviceColumns, DeviceCopy, OverlayCopy, PartialCopy
from gear_data.residency.device.shard_copies import ShardCopies
from gear_data.residency.host import Contents, host_shards
from gear_data.residency.joined_shards import JoinedShards
from gear_data.residency.reader import ShardReader
from gear_data.residency.remote_mmap import CachedShards
from gear_data.residency.shards import Shards
from gear_data.schema import Schema
from gear_data.storage.dataset_files import CachedFiles, DatasetFiles
from gear_data.storage.edits.files import EditedFiles
from gear_data.storage.manifest import FileEntry, ShardEntry
from gear_data.storage.mapped_shards import MappedShards, check_file_size, map_file
from gear_data.words import Residency

__all__ = [
    "RESIDENCIES",
    "ColumnsCopy",
    "Contents",
    "DeviceColumns",
    "DeviceCopy",
    "OverlayCopy",
    "OverlayShards",
    "PartialCopy",
    "JoinedShards",
    "ShardCopies",
    "ShardReader",
    "Shards",
    "host_residency",
    "open_shards",
]

#: Residency -> the residency by which the CPU reads the columns.
_HOST_RESIDENCY = {"mmap": "mmap", "host": "host", "pinned": "pinned", "device": "mmap"}
#: The residencies that `gear_data.open` takes.
RESIDENCIES: tuple[Residency, ...] = get_args(Residency)


def host_residency(residency: str) -> str:
    """Returns the residency by which the CPU reads: `mmap`, `host` or `pinned`.

    Raises:
        UnknownNameError: unknown residency.
    """
    if residency not in _HOST_RESIDENCY:
        raise unknown_name("residency", residency, RESIDENCIES)
    return _HOST_RESIDENCY[residency]


def open_shards(
    residency: str,
    files: DatasetFiles,
    schema: Schema,
    shards: tuple[ShardEntry, ...],
    bad: frozenset[str] = frozenset(),
    *,
    grows: bool = False,
) -> Shards:
    """Opens the shards of a dataset in this machine's memory.

    Args:
        residency: `mmap`, `host`, or `pinned`: as `host`, in memory that CUDA can register.
        files: the shards' files.
        schema: the columns.
        shards: the manifest's entries.
        bad: files that are not read; zeros stand for them.
        grows: whether the dataset grows. Each shard then has a copy of its own, which generations share.

    Raises:
        UnknownNameError: unknown residency.
        HostMemoryError: `host` or `pinned`, and there is too little memory.
        CorruptShardError: `host` or `pinned`, and a shard cannot be read.
    """
    if residency not in ("mmap", "host", "pinned"):
        raise unknown_name("residency", residency, ("mmap", "host", "pinned"))
    if residency != "mmap":
        load = partial(host_shards, files, schema, bad=bad, registrable=residency == "pinned")
        return JoinedShards([load((shard,)) for shard in shards]) if grows else load(shards)

    def map_shard(shard: int) -> tuple[pa.Buffer, ...]:
        return tuple(map_entry(entry) for entry in shards[shard].files)

    def map_entry(entry: FileEntry) -> pa.Buffer:
        if entry.file in bad:
            # Pages of zeros take no memory.
            return pa.py_buffer(np.zeros(entry.bytes, np.uint8))
        with files.local(entry) as path:
            buffer = map_file(path)
            # The file may have been truncated since `local` checked its size.
            check_file_size(files.name(entry), buffer.size, entry)
            files.mapped.add(entry, path)
        return buffer

    if isinstance(files, CachedFiles | EditedFiles) and files.cache is not None:
        return CachedShards(schema, shards, map_shard, files)
    return MappedShards(schema, shards, map_shard, files.mapped)
