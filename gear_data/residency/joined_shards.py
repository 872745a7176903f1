"""JoinedShards: shards of several mappings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.selection.windows import Int64Array
from gear_data.storage.mapped_shards import MappedShards, ShardLease


class JoinedShards:
    """Shards that are mapped one by one. See `Shards`.

    Args:
        shards: one shard each, at least one, all mapped.
    """

    all_mapped = True

    def __init__(self, shards: Sequence[MappedShards]) -> None:
        self._shards = tuple(shards)
        self.addresses: Int64Array = np.concatenate([each.addresses for each in shards])

    def check(self) -> None:
        self._shards[0].check()  # of all files of the dataset

    def lease(self, shards: Sequence[int]) -> ShardLease:
        return ShardLease(self.addresses, self)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        return self._shards[shard].column(0, index, first, last)

    def values(self, shard: int, index: int) -> pa.Array:
        return self._shards[shard].values(0, index)

    def only(self, shard: int) -> MappedShards:
        """Returns one shard."""
        return self._shards[shard]
