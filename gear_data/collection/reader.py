"""ColumnReader: the interface between the collector and the columns' memory.

`gear_data.residency.reader.ShardReader` reads this process's memory, and
`gear_data.cluster.client.reader.ClusterReader` also reads other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.kernels.output_plan import OutputPlanArray
from gear_data.selection.windows import Int64Array, Windows


@dataclass(slots=True)  # not frozen: see Windows
class OutputBuffers:
    """The memory that a reader fills, and the plan it follows.

    The kernel `gear_data.kernels.cpu.collect.collect` takes the same arguments.

    Attributes:
        plan: OUTPUT_PLAN [outputs], see `gear_data.kernels.output_plan`.
        addresses: int64 [outputs], the address of each array.
        row_of_window: int64 [B], the row of the arrays that each window fills, or its first step; see `packed` of
            OUTPUT_PLAN. Empty: window b fills row b.
        windows_per_batch: windows of one batch; one read may fill several batches.
        valid: int64 [batches], receives the bytes of valid steps of each batch.
        memory: the whole buffer that holds the arrays, if the pool uses the buffer again; else None.
    """

    plan: OutputPlanArray
    addresses: Int64Array
    row_of_window: Int64Array
    windows_per_batch: int
    valid: Int64Array
    memory: npt.NDArray[np.uint8] | None = None


class MappedColumns(NamedTuple):
    """Columns that a kernel reads in place: arguments of `gear_data.kernels.cpu.collect.collect`.

    Attributes:
        shard, start, length: int64 [episodes], read-only and contiguous, from the episode table.
        final_rows: int64 [episodes], the row of each episode's final observation, -1 if it has none; empty: none has.
        addresses: int64 [shards, columns], the address of each column's first byte.
        check: raises CorruptShardError if a mapped file was truncated or changed in place.
    """

    shard: Int64Array
    start: Int64Array
    length: Int64Array
    final_rows: Int64Array
    addresses: Int64Array
    check: Callable[[], None]


class ColumnReader(Protocol):
    """Reads windows of columns, from this process's memory or from another node."""

    def read(self, windows: Windows, buffers: OutputBuffers) -> None:
        """Fills the buffers' arrays with the steps of these windows, and `buffers.valid`."""

    def mapped(self) -> MappedColumns | None:
        """Returns the columns if all shards are mapped, and stay mapped as long as the reader lives; else None."""

    def final_address(self, column: str) -> int:
        """Returns the address of a column's final observations, or 0 if it has none.

        The address stays valid as long as the reader lives.
        """

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        """Reads a column of variable length.

        Args:
            column: the column's index in the schema.
            windows: the windows.

        Returns:
            One chunk of valid steps for each window. A reader may put several windows into one chunk.

        Raises:
            CorruptShardError: damaged values.
        """
