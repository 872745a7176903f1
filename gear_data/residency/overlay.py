"""Shards with one column from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.residency.shards import Shards
from gear_data.selection.windows import Int64Array
from gear_data.storage.reader import ShardLease


class OverlayShards:
    """Shards of which one column is that of other shards: in place of their own, or behind all of theirs.

    Args:
        shards: most of the columns.
        index: the column's place; the number of columns of `shards` for one more.
        other: as many shards of as many steps, of one column.
    """

    def __init__(self, shards: Shards, index: int, other: Shards) -> None:
        self._shards = shards
        self._index = index
        self._other = other
        count, columns = shards.addresses.shape
        self._shape = (count, max(columns, index + 1))

    @cached_property
    def addresses(self) -> Int64Array:
        """See `Shards`; to be asked for when all are mapped."""
        return self._overlaid(self._shards.addresses, self._other.addresses)

    def lease(self, shards: Sequence[int]) -> ShardLease:
        mine, theirs = self._shards.lease(shards), self._other.lease(shards)
        rows = list(shards)
        addresses = np.empty(self._shape, np.int64)
        addresses[rows] = self._overlaid(mine.addresses[rows], theirs.addresses[rows])
        return ShardLease(addresses, (mine, theirs))

    def _overlaid(self, mine: Int64Array, theirs: Int64Array) -> Int64Array:
        """Rows of both. Of the column that is joined in, the first shards' own, if they have one, is left out."""
        parts = (mine[:, : self._index], theirs[:, :1], mine[:, self._index + 1 :])
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    @property
    def all_mapped(self) -> bool:
        return self._shards.all_mapped and self._other.all_mapped

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        if index == self._index:
            return self._other.column(shard, 0, first, last)
        return self._shards.column(shard, index, first, last)

    def values(self, shard: int, index: int) -> pa.Array:
        return self._shards.values(shard, index)
