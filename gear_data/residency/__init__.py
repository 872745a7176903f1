"""Residency: where the bytes of the columns live.

`mmap`: in the page cache, mapped on first touch. `host`: in memory that every process of this host shares. `pinned`:
there too, registered for a GPU to read in place. `device`: in a GPU's memory as well. `tiered`: each part where a plan
has it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gear_data.errors import unknown_name
from gear_data.residency.cached import CachedShards
from gear_data.residency.device.columns import DeviceColumns, DeviceCopy, OverlayCopy, PartialCopy
from gear_data.residency.host import host_shards
from gear_data.residency.overlay import OverlayShards
from gear_data.residency.reader import ShardReader
from gear_data.residency.shards import Shards
from gear_data.schema import Schema
from gear_data.storage.dataset_files import CachedFiles, DatasetFiles
from gear_data.storage.manifest import ShardEntry
from gear_data.storage.reader import MappedShards, map_file

__all__ = [
    "RESIDENCIES",
    "DeviceColumns",
    "DeviceCopy",
    "OverlayCopy",
    "OverlayShards",
    "PartialCopy",
    "ShardReader",
    "Shards",
    "host_residency",
    "open_shards",
]

#: Residency -> where the CPU reads the columns.
_ON_THE_HOST = {"mmap": "mmap", "host": "host", "pinned": "host", "device": "mmap"}
#: What `gear_data.open` takes.
RESIDENCIES = tuple(_ON_THE_HOST)


def host_residency(residency: str) -> str:
    """`mmap` or `host`: where the CPU reads the columns of a residency.

    Raises:
        UnknownNameError: no such residency.
    """
    if residency not in _ON_THE_HOST:
        raise unknown_name("residency", residency, RESIDENCIES)
    return _ON_THE_HOST[residency]


def open_shards(
    residency: str,
    files: DatasetFiles,
    schema: Schema,
    shards: tuple[ShardEntry, ...],
    bad: frozenset[str] = frozenset(),
) -> Shards:
    """The shards of a dataset, in the memory of this machine that the residency says: `mmap` or `host`. `bad` are files
    that are not read: zeros stand for them.

    Raises:
        UnknownNameError: no such residency.
        HostMemoryError: `host`, and too little memory.
        CorruptShardError: `host`, which reads them all, and a shard cannot be read.
    """
    if residency not in ("mmap", "host"):
        raise unknown_name("residency", residency, ("mmap", "host"))
    if residency == "host":
        return host_shards(files, schema, shards, bad)

    def map_shard(shard: int) -> pa.Buffer:
        entry = shards[shard].entry
        if entry.file in bad:
            # Pages of zeros take no memory.
            return pa.py_buffer(np.zeros(entry.bytes, np.uint8))
        with files.local(entry) as path:
            return map_file(path)

    if isinstance(files, CachedFiles):
        return CachedShards(schema, shards, map_shard, files)
    return MappedShards(schema, shards, map_shard)
