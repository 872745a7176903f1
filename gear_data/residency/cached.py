"""Residency `mmap` of a remote dataset: shards are fetched on first touch, and let go when the cache is full."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from gear_data.schema import Schema
from gear_data.storage.dataset_files import CachedFiles
from gear_data.storage.manifest import ShardEntry
from gear_data.storage.reader import MappedShards, ShardLease

#: Seconds between two notes of one shard's use: the files' times tell all processes which one to remove first.
_NOTE_SECONDS = 1.0


class CachedShards(MappedShards):
    """Shards of a remote dataset, mapped as long as the cache has their files.

    Another thread may let a shard go at any time, and map it elsewhere later: addresses are good for the holder of a
    lease alone, so `addresses` stays empty. No locks, which a fork could leave locked: what threads share are
    dictionaries, and of those single operations that are atomic.

    Args:
        schema, shards, map_shard: see `MappedShards`.
        files: what `map_shard` takes its files from.
    """

    def __init__(
        self,
        schema: Schema,
        shards: tuple[ShardEntry, ...],
        map_shard: Callable[[int], pa.Buffer],
        files: CachedFiles,
    ) -> None:
        super().__init__(schema, shards, map_shard)
        self._files = files
        self._noted: dict[int, float] = {}

    def touch(self, shard: int) -> pa.Buffer:
        """Maps a shard: it stays mapped as long as the buffer lives. Safe to call from several threads."""
        buffer = self._buffers.get(shard)
        if buffer is None:
            buffer = self._buffers.setdefault(shard, self._map_shard(shard))
            self._noted[shard] = time.monotonic()
            # Room was made for it: what else is mapped may have no file any more, and would keep the disk full.
            for other in list(self._buffers):
                if not self._files.holds(self._shards[other].entry):
                    self._buffers.pop(other, None)
        elif time.monotonic() - self._noted.get(shard, 0.0) > _NOTE_SECONDS:
            self._noted[shard] = time.monotonic()
            if not self._files.mark_used(self._shards[shard].entry):
                self._buffers.pop(shard, None)
        return buffer

    @property
    def all_mapped(self) -> bool:
        """Never: any of them may be let go."""
        return False

    def lease(self, shards: Sequence[int]) -> ShardLease:
        buffers = [self.touch(shard) for shard in shards]
        # Rows of other shards stay as they come: nobody looks at them.
        addresses = np.empty(self.addresses.shape, np.int64)
        for shard, buffer in zip(shards, buffers, strict=True):
            addresses[shard] = self._addresses_in(shard, buffer)
        return ShardLease(addresses, buffers)
