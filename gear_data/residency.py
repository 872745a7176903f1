"""Residency: where the bytes of the columns live. `mmap`: in the page cache, mapped on first touch."""

from __future__ import annotations

import numpy as np

from gear_data.collection import Places
from gear_data.errors import unknown_name
from gear_data.selection.windows import Int64Array, Windows
from gear_data.storage.reader import MappedShards

RESIDENCIES = ("mmap",)


def check_residency(name: str) -> None:
    """Raises UnknownNameError, which lists the residencies."""
    if name not in RESIDENCIES:
        raise unknown_name("residency", name, RESIDENCIES)


class MmapReader:
    """A `ColumnReader` over mapped shards.

    Args:
        shards: the mapped shards.
        shard, start, length: int64 [episodes], from the episode table.
    """

    def __init__(self, shards: MappedShards, shard: Int64Array, start: Int64Array, length: Int64Array) -> None:
        self._shards = shards
        self._shard = shard
        self._start = start
        self._length = length

    def read(self, windows: Windows, places: Places) -> int:
        from gear_data.kernels.cpu import collect

        if not self._shards.all_mapped:
            for shard in np.unique(self._shard[windows.episode_id]).tolist():
                self._shards.touch(shard)
        return int(
            collect(
                windows.episode_id,
                windows.start,
                self._shard,
                self._start,
                self._length,
                self._shards.addresses,
                places.plan,
                places.addresses,
            )
        )
