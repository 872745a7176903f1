"""OverlayShards: shards with one column from others, such as a sidecar's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.residency.shards import Shards
from gear_data.selection.windows import Int64Array
from gear_data.storage.mapped_shards import ShardLease


class OverlayShards:
    """Shards with one column from other shards.

    Args:
        shards: the shards with all other columns.
        index: index of the column that is replaced. If it equals the number of columns of `shards`, a column is added.
        other: shards with one column, and with the same steps.
    """

    def __init__(self, shards: Shards, index: int, other: Shards) -> None:
        self._shards = shards
        self._index = index
        self._other = other
        count, columns = shards.addresses.shape
        self._shape = (count, max(columns, index + 1))

    @cached_property
    def addresses(self) -> Int64Array:
        """See `Shards`; valid when all shards are mapped."""
        return self._overlaid(self._shards.addresses, self._other.addresses)

    def check(self) -> None:
        self._shards.check()
        self._other.check()

    def lease(self, shards: Sequence[int]) -> ShardLease:
        lease, other = self._shards.lease(shards), self._other.lease(shards)
        rows = list(shards)
        addresses = np.empty(self._shape, np.int64)
        addresses[rows] = self._overlaid(lease.addresses[rows], other.addresses[rows])
        return ShardLease(addresses, (lease, other))

    def _overlaid(self, addresses: Int64Array, other: Int64Array) -> Int64Array:
        """Returns the addresses with the only column of `other` at the index."""
        parts = (addresses[:, : self._index], other[:, :1], addresses[:, self._index + 1 :])
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
