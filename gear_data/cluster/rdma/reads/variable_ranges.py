"""Ranges of text or bytes in another node's memory, computed from their offsets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gear_data.errors import CorruptShardError
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest
from gear_data.storage.variable_columns import DAMAGED


@dataclass(frozen=True)
class ValueSpans:
    """Spans of a column of variable length, each with at least one row.

    Attributes:
        column: position of the column in the schema.
        shard, count: int64 [n], the shard and the row count of each span.
        offsets: int64, the offsets of each span as its shard holds them: one more than the span has rows.
    """

    column: int
    shard: Int64Array
    count: Int64Array
    offsets: Int64Array

    def locate(self, manifest: Manifest) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns where the values of each span are.

        Returns:
            int64 [n], the first byte of each span among its shard's values; int64 [n], the number of bytes; and int64
            [rows + 1], the offsets of the rows of all spans, starting at 0.

        Raises:
            CorruptShardError: offsets are not ascending, or point outside the shard's values.
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
        # A difference can overflow only where an offset is below 0.
        wrong |= (np.minimum.reduceat(self.offsets, starts) < 0) | (last > held)
        if wrong.any():
            file = manifest.shards[int(self.shard[wrong.argmax()])].entry.file
            raise CorruptShardError(
                f"damaged values: offsets of {file} are not ascending, or point outside its values",
                column=name,
                hint=DAMAGED,
            )
        np.cumsum(lengths, out=packed[1:])
        return first, last - first, packed
