"""Shards with one column from elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.residency.shards import Shards


class JoinedShards:
    """Shards of which one column is that of other shards: in place of their own, or behind all of theirs.

    Args:
        shards: most of the columns.
        index: the column's place; the number of columns of `shards` for one more.
        other: as many shards of as many steps, of one column.

    Attributes:
        addresses: see `Shards`.
    """

    def __init__(self, shards: Shards, index: int, other: Shards) -> None:
        self._shards = shards
        self._index = index
        self._other = other
        self._ready: set[int] = set()
        count, columns = shards.addresses.shape
        self.addresses = np.zeros((count, max(columns, index + 1)), np.int64)
        if shards.all_mapped and other.all_mapped:
            for shard in range(count):
                self.touch(shard)

    def touch(self, shard: int) -> None:
        if shard not in self._ready:
            self._shards.touch(shard)
            self._other.touch(shard)
            row = self._shards.addresses[shard]
            # Each place is written once, with what it will hold: other threads may be reading.
            self.addresses[shard, : self._index] = row[: self._index]
            self.addresses[shard, self._index + 1 :] = row[self._index + 1 :]
            self.addresses[shard, self._index] = self._other.addresses[shard, 0]
            self._ready.add(shard)

    @property
    def all_mapped(self) -> bool:
        return len(self._ready) == len(self.addresses)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        if index == self._index:
            return self._other.column(shard, 0, first, last)
        return self._shards.column(shard, index, first, last)

    def values(self, shard: int, index: int) -> pa.Array:
        return self._shards.values(shard, index)
