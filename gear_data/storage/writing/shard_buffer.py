"""Memory for the steps of one shard until it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.arrow_files import column_array
from gear_data.storage.episode_block import EpisodeBlock
from gear_data.storage.variable_columns import OFFSET_BYTES, value_bytes, value_offsets


class ShardBuffer:
    """Growing arrays for the columns of one shard.

    `clear` empties them for the next shard.

    Args:
        schema: all columns.
        capacity: initial size in bytes. A larger episode makes the buffer grow.

    Attributes:
        steps: number of steps in the buffer.
        bytes: number of bytes in the buffer.
    """

    def __init__(self, schema: Schema, capacity: int) -> None:
        # The system allocates pages of np.empty when they are first written, so a small dataset uses little memory.
        self._step_bytes = schema.step_bytes + OFFSET_BYTES * len(schema.variable_columns)
        steps = max(1, capacity // self._step_bytes)
        self._schema = schema
        self._fixed = {c.name: np.empty((steps, *c.shape), c.storage_dtype) for c in schema.fixed_columns}
        self._variable = {c.name: _VariableValues(steps, capacity) for c in schema.variable_columns}
        self.steps = 0
        self.bytes = 0

    def sizes(self, block: EpisodeBlock) -> npt.NDArray[np.int64]:
        """Returns the cumulative bytes of a block's episodes in the buffer.

        The array is int64 [episodes + 1].
        """
        sizes = block.offsets * self._step_bytes
        for name in self._variable:
            bounds = value_offsets(block.columns[name])[block.offsets]
            sizes += bounds - bounds[0]
        return sizes

    def append(self, block: EpisodeBlock) -> None:
        """Copies a block's episodes into the buffer."""
        steps = self.steps + int(block.lengths.sum())
        for column in self._schema.fixed_columns:
            buffer = self._fixed[column.name] = _grown(self._fixed[column.name], self.steps, steps)
            # The view stores the bytes of bool as uint8.
            buffer[self.steps : steps] = block.columns[column.name].view(column.storage_dtype)
        for name, values in self._variable.items():
            values.append(block.columns[name], self.steps)
        self.bytes += int(self.sizes(block)[-1])
        self.steps = steps

    def record_batch(self) -> pa.RecordBatch:
        """Returns the shard. It shares this buffer's memory."""
        return pa.RecordBatch.from_arrays([self._array(c) for c in self._schema], schema=self._schema.to_arrow())

    def _array(self, column: ColumnSpec) -> pa.Array:
        if column.variable_length:
            return self._variable[column.name].array(self.steps, column.arrow_type)
        return column_array(self._fixed[column.name][: self.steps], column.arrow_type)

    def clear(self) -> None:
        """Empties the buffer and keeps its memory."""
        self.steps = self.bytes = 0


class _VariableValues:
    """One variable-length column: int64 offsets from 0, and the values' bytes."""

    def __init__(self, steps: int, capacity: int) -> None:
        self._offsets = np.zeros(steps + 1, np.int64)
        self._data = np.empty(capacity, np.uint8)

    def append(self, array: pa.Array, steps: int) -> None:
        """Adds values after the first `steps` ones."""
        first = int(self._offsets[steps])
        bounds = value_offsets(array)
        last = first + int(bounds[-1] - bounds[0])
        self._offsets = _grown(self._offsets, steps + 1, steps + 1 + len(array))
        np.add(bounds[1:], first - bounds[0], out=self._offsets[steps + 1 : steps + 1 + len(array)])
        self._data = _grown(self._data, first, last)
        self._data[first:last] = value_bytes(array)[bounds[0] : bounds[-1]]

    def array(self, steps: int, type_: pa.DataType) -> pa.Array:
        """Returns the first `steps` values as an Arrow array over this memory."""
        data = self._data[: self._offsets[steps]]
        return pa.Array.from_buffers(type_, steps, [None, pa.py_buffer(self._offsets[: steps + 1]), pa.py_buffer(data)])


def _grown(buffer: npt.NDArray[Any], used: int, rows: int) -> npt.NDArray[Any]:
    """Returns a buffer with at least `rows` rows.

    It is the given buffer, or a larger one with a copy of the first `used` rows.
    """
    if rows <= len(buffer):
        return buffer
    larger = np.empty((rows, *buffer.shape[1:]), buffer.dtype)
    larger[:used] = buffer[:used]
    return larger
