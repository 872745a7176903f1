"""Where values of text or bytes lie in another node's memory, from their offsets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gear_data.errors import CorruptShardError
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest
from gear_data.storage.variable import DAMAGED


@dataclass(frozen=True)
class ValueSpans:
    """Spans of n places in a column of variable length, each with rows.

    Attributes:
        column: its place in the schema.
        shard, count: int64 [n], of each span its shard and rows.
        offsets: int64, span by span one more than it has rows, as the shards hold them.
    """

    column: int
    shard: Int64Array
    count: Int64Array
    offsets: Int64Array

    def places(self, manifest: Manifest) -> tuple[Int64Array, Int64Array, Int64Array]:
        """int64 [n] each, of each span the first byte among its shard's values, and how many; and int64 [rows + 1], the
        offsets of all its rows from 0.

        Raises:
            CorruptShardError: offsets that are not in order, or leave the shard's values.
        """
        packed = np.zeros(int(self.count.sum()) + 1, np.int64)
        if not len(self.count):
            return packed[:0], packed[:0], packed
        name = manifest.schema.columns[self.column].name
        ends = np.cumsum(self.count + 1)
        starts = ends - self.count - 1
        first, last = self.offsets[starts], self.offsets[ends - 1]
        lengths = np.delete(np.diff(self.offsets), ends[:-1] - 1)
        held = np.array([shard.variable[name].bytes for shard in manifest.shards], np.int64)[self.shard]
        wrong = np.minimum.reduceat(lengths, np.cumsum(self.count) - self.count) < 0
        # A difference may have overflowed, but only where there is an offset below 0.
        wrong |= (np.minimum.reduceat(self.offsets, starts) < 0) | (last > held)
        if wrong.any():
            file = manifest.shards[int(self.shard[wrong.argmax()])].entry.file
            raise CorruptShardError(
                f"damaged values: offsets of {file} that are not in order, or leave its values",
                column=name,
                hint=DAMAGED,
            )
        np.cumsum(lengths, out=packed[1:])
        return first, last - first, packed
