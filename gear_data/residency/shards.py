"""Shards: the interface of a dataset's shards to readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from gear_data.selection.windows import Int64Array
from gear_data.storage.mapped_shards import ShardLease


class Shards(Protocol):
    """Columns of all shards, mapped into this process.

    Attributes:
        addresses: int64 [shards, columns], the address of each column's first byte; valid if `all_mapped`. 0 for
            columns of variable length.
    """

    @property
    def addresses(self) -> Int64Array: ...

    @property
    def all_mapped(self) -> bool:
        """Whether all shards are mapped, so that `addresses` is complete."""

    def check(self) -> None:
        """Checks that mapped files still have their sizes.

        The check is cheap: it precedes each batch.

        Raises:
            CorruptShardError: a mapped file was truncated or changed in place.
        """

    def lease(self, shards: Sequence[int]) -> ShardLease:
        """Maps these shards as long as the lease lives. Safe to call from several threads."""

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Returns a read-only view of a shard's column, [steps, *shape].

        With `first` and `last`, the view has these rows only.

        A column of variable length gives an object array of str or bytes.

        Raises:
            CorruptShardError: damaged values of variable length.
        """

    def values(self, shard: int, index: int) -> pa.Array:
        """Returns a shard's column of variable length as an Arrow array [steps].

        The array lies in the mapping.

        Raises:
            CorruptShardError: the offsets do not fit the values.
        """
