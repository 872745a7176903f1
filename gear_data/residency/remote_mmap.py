"""Residency `mmap` of a remote dataset.

Shards are fetched at first use, and unmapped when the cache is full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from gear_data.schema import Schema
from gear_data.storage.dataset_files import CachedFiles
from gear_data.storage.edits.files import EditedFiles
from gear_data.storage.manifest import ShardEntry
from gear_data.storage.mapped_shards import MappedShards, ShardLease

#: Seconds between two records of a shard's use. The cache removes the file with the oldest time first.
_NOTE_SECONDS = 1.0


class CachedShards(MappedShards):
    """Shards of a remote dataset, mapped as long as the cache has their files.

    Another thread may unmap a shard at any time, and map it at another address later. So addresses are valid only for
    the holder of a lease, and `addresses` stays empty. There are no locks, because a fork could leave a lock held:
    threads share dictionaries, and use only atomic operations on them.

    Args:
        schema, shards, map_shard: see `MappedShards`.
        files: the cache that `map_shard` uses.
    """

    def __init__(
        self,
        schema: Schema,
        shards: tuple[ShardEntry, ...],
        map_shard: Callable[[int], tuple[pa.Buffer, ...]],
        files: CachedFiles | EditedFiles,
    ) -> None:
        super().__init__(schema, shards, map_shard, files.mapped)
        self._files = files
        self._noted: dict[int, float] = {}

    def touch(self, shard: int) -> tuple[pa.Buffer, ...]:
        """Returns the buffers of a shard, which stays mapped as long as the buffers live.

        Safe to call from several threads.
        """
        buffers = self._buffers.get(shard)
        if buffers is None:
            buffers = self._buffers.setdefault(shard, self._map_shard(shard))
            self._noted[shard] = time.monotonic()
            # To fetch this file, the cache may have removed others. A mapping of a removed file keeps its disk space.
            for mapped in list(self._buffers):
                if not all(map(self._files.holds, self._shards[mapped].files)):
                    self._buffers.pop(mapped, None)
        elif time.monotonic() - self._noted.get(shard, 0.0) > _NOTE_SECONDS:
            self._noted[shard] = time.monotonic()
            if False in map(self._files.mark_used, self._shards[shard].files):
                self._buffers.pop(shard, None)
        return buffers

    @property
    def all_mapped(self) -> bool:
        """Always False: any shard may be unmapped."""
        return False

    def lease(self, shards: Sequence[int]) -> ShardLease:
        buffers = [self.touch(shard) for shard in shards]
        # The addresses of other shards stay uninitialised, because no window of the lease's holder reads them.
        addresses = np.empty(self.addresses.shape, np.int64)
        for shard, mapped in zip(shards, buffers, strict=True):
            addresses[shard] = self._addresses_in(shard, mapped)
        return ShardLease(addresses, buffers)
