"""The shards of a dataset as a reader sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from gear_data.selection.windows import Int64Array
from gear_data.storage.reader import ShardLease


class Shards(Protocol):
    """Columns of all shards, mapped into this process.

    Attributes:
        addresses: int64 [shards, columns], where each column's first byte is; good once `all_mapped`. 0 for columns of
            variable length.
    """

    @property
    def addresses(self) -> Int64Array: ...

    @property
    def all_mapped(self) -> bool:
        """Whether `addresses` holds those of every shard."""

    def lease(self, shards: Sequence[int]) -> ShardLease:
        """Maps these shards. Safe to call from several threads."""

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """[steps, *shape] read-only view of a shard's column, or of its rows `first` to `last`; of a column of variable
        length, an object array of str or bytes.

        Raises:
            CorruptShardError: values of variable length that are damaged.
        """

    def values(self, shard: int, index: int) -> pa.Array:
        """A shard's column of variable length as an Arrow array [steps] over the mapping.

        Raises:
            CorruptShardError: its offsets do not fit its values.
        """
