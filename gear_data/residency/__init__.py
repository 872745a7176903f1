"""Residency: where the bytes of the columns live.

`mmap`: in the page cache, mapped on first touch. `host`: in memory that every process of this host shares.
"""

from __future__ import annotations

from pathlib import Path

from gear_data.errors import unknown_name
from gear_data.residency.host import host_shards
from gear_data.residency.joined import JoinedShards
from gear_data.residency.reader import ShardReader
from gear_data.residency.shards import Shards
from gear_data.schema import Schema
from gear_data.storage.manifest import ShardEntry
from gear_data.storage.reader import MappedShards, map_file

__all__ = ["RESIDENCIES", "JoinedShards", "ShardReader", "Shards", "open_shards"]

RESIDENCIES = ("host", "mmap")


def open_shards(residency: str, folder: Path, schema: Schema, shards: tuple[ShardEntry, ...]) -> Shards:
    """The shards in a folder, in the memory that the residency says.

    Raises:
        UnknownNameError: no such residency.
        HostMemoryError: `host`, and too little memory.
        CorruptShardError: `host`, which reads them all, and a shard cannot be read.
    """
    if residency not in RESIDENCIES:
        raise unknown_name("residency", residency, RESIDENCIES)
    if residency == "host":
        return host_shards(folder, schema, shards)
    return MappedShards(schema, shards, lambda shard: map_file(folder, shards[shard].entry))
