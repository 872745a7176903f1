"""The steps of one shard, in memory until it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.arrow_files import column_array
from gear_data.storage.block import EpisodeBlock
from gear_data.storage.variable import OFFSET_BYTES, value_bytes, value_offsets


class ShardBuffer:
    """Collects whole episodes column by column; emptied and used again for every shard.

    Args:
        schema: all columns.
        capacity: bytes there is room for at first; an episode that is larger makes more.
    """

    def __init__(self, schema: Schema, capacity: int) -> None:
        # Pages of np.empty are not taken until they are written, so a small dataset costs little.
        self._step_bytes = schema.step_bytes + OFFSET_BYTES * len(schema.variable_columns)
        steps = max(1, capacity // self._step_bytes)
        self._schema = schema
        self._fixed = {c.name: np.empty((steps, *c.shape), c.storage_dtype) for c in schema.fixed_columns}
        self._variable = {c.name: _Values(steps, capacity) for c in schema.variable_columns}
        self.steps = 0
        self.bytes = 0

    def sizes(self, block: EpisodeBlock) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: bytes that the block's episodes take here, summed up from 0."""
        sizes = block.offsets * self._step_bytes
        for array in block.variable.values():
            places = value_offsets(array)[block.offsets]
            sizes += places - places[0]
        return sizes

    def append(self, block: EpisodeBlock) -> None:
        """Copies a block's episodes."""
        steps = self.steps + int(block.lengths.sum())
        for column in self._schema.fixed_columns:
            buffer = self._fixed[column.name] = _grown(self._fixed[column.name], self.steps, steps)
            # A view as stored: bool lands in uint8 by its bytes.
            buffer[self.steps : steps] = block.columns[column.name].view(column.storage_dtype)
        for name, values in self._variable.items():
            values.append(block.variable[name], self.steps)
        self.bytes += int(self.sizes(block)[-1])
        self.steps = steps

    def record_batch(self) -> pa.RecordBatch:
        """The shard; it shares this buffer's memory."""
        return pa.RecordBatch.from_arrays([self._array(c) for c in self._schema], schema=self._schema.to_arrow())

    def _array(self, column: ColumnSpec) -> pa.Array:
        if column.variable_length:
            return self._variable[column.name].array(self.steps, column.arrow_type)
        return column_array(self._fixed[column.name][: self.steps], column.arrow_type)

    def clear(self) -> None:
        self.steps = self.bytes = 0


class _Values:
    """One column of variable length: int64 offsets, which begin with 0, and the values' bytes."""

    def __init__(self, steps: int, capacity: int) -> None:
        self._offsets = np.zeros(steps + 1, np.int64)
        self._data = np.empty(capacity, np.uint8)

    def append(self, array: pa.Array, steps: int) -> None:
        """Adds values behind the first `steps`."""
        first = int(self._offsets[steps])
        places = value_offsets(array)
        last = first + int(places[-1] - places[0])
        self._offsets = _grown(self._offsets, steps + 1, steps + 1 + len(array))
        np.add(places[1:], first - places[0], out=self._offsets[steps + 1 : steps + 1 + len(array)])
        self._data = _grown(self._data, first, last)
        self._data[first:last] = value_bytes(array)[places[0] : places[-1]]

    def array(self, steps: int, type_: pa.DataType) -> pa.Array:
        data = self._data[: self._offsets[steps]]
        return pa.Array.from_buffers(type_, steps, [None, pa.py_buffer(self._offsets[: steps + 1]), pa.py_buffer(data)])


def _grown(buffer: npt.NDArray[Any], used: int, wanted: int) -> npt.NDArray[Any]:
    """A buffer with room for `wanted` rows and the first `used` of the old one; the old one, where it has the room."""
    if wanted <= len(buffer):
        return buffer
    larger = np.empty((wanted, *buffer.shape[1:]), buffer.dtype)
    larger[:used] = buffer[:used]
    return larger
