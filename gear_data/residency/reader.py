"""ShardReader: reads windows from shards that this process has mapped.

It serves any residency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.collection.reader import MappedColumns, OutputBuffers
from gear_data.kernels import cpu
from gear_data.residency.device.staging import StagedRows, StagingBuffer
from gear_data.residency.shards import Shards
from gear_data.selection.windows import Int64Array, Windows

#: Returns the int64 ids of the episodes with a final observation, ascending, and the columns of these observations.
Finals = Callable[[], tuple[Int64Array, dict[str, npt.NDArray[Any]]]]


def read_only(array: Int64Array) -> Int64Array:
    """Returns a contiguous view that cannot be written.

    Kernels are compiled separately for arrays that can be written and arrays that cannot: `collect` takes 20 seconds.
    Columns of an Arrow table are of either kind.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


class ShardReader:
    """A `ColumnReader` over mapped shards.

    `read` makes one call of the collecting kernel.

    Args:
        shards: the mapped shards.
        shard, start, length: int64 [episodes], from the episode table.
        finals: see `Finals`.

    Attributes:
        final_rows: int64 [episodes]: the row of each episode among the final observations, -1 if it has none. Empty
            until `final_address` is first called.
    """

    def __init__(
        self, shards: Shards, shard: Int64Array, start: Int64Array, length: Int64Array, finals: Finals
    ) -> None:
        # Loads the kernel here, not in a prefetch thread.
        self._collect = cpu.collect.collect
        self.shards = shards
        self.shard, self.start, self.length = read_only(shard), read_only(start), read_only(length)
        self._finals = finals
        self.final_rows: Int64Array = np.empty(0, np.int64)
        self._final_columns: dict[str, npt.NDArray[Any]] = {}

    def read(self, windows: Windows, buffers: OutputBuffers) -> None:
        """Fills the buffers with the windows' steps: see `ColumnReader`."""
        shards = self.shards
        shards.check()
        if shards.all_mapped:
            addresses = shards.addresses
        else:
            # The lease is held until `read` returns: another thread may unmap a shard that no lease holds.
            lease = shards.lease(np.unique(self.shard[windows.episode_id]).tolist())
            addresses = lease.addresses
        self._collect(
            windows.episode_id,
            windows.start,
            windows.length,
            buffers.row_of_window,
            self.shard,
            self.start,
            self.length,
            self.final_rows,
            addresses,
            buffers.plan,
            buffers.addresses,
            buffers.windows_per_batch,
            buffers.valid,
        )

    def mapped(self) -> MappedColumns | None:
        """Returns the columns if all shards are mapped: see `ColumnReader`."""
        shards = self.shards
        if not shards.all_mapped:
            return None
        return MappedColumns(self.shard, self.start, self.length, self.final_rows, shards.addresses, shards.check)

    def final_address(self, column: str) -> int:
        """Returns the address of a column's final observations, or 0: see `ColumnReader`."""
        ids, columns = self._finals()
        if column not in columns or not len(ids):
            return 0
        if not len(self.final_rows):
            self.final_rows = np.full(len(self.length), -1, np.int64)
            self.final_rows[ids] = np.arange(len(ids))
        self._final_columns[column] = np.ascontiguousarray(columns[column])
        return int(self._final_columns[column].ctypes.data)

    def final_values(self, address: int) -> npt.NDArray[Any]:
        """Returns the final observations at an address that `final_address` gave."""
        return next(values for values in self._final_columns.values() if values.ctypes.data == address)

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        """Reads a column of variable length: see `ColumnReader`."""
        shards = self.shard[windows.episode_id]
        first = self.start[windows.episode_id] + windows.start
        arrays = {shard: self.shards.values(shard, column) for shard in np.unique(shards).tolist()}
        spans = list(zip(shards.tolist(), first.tolist(), (first + windows.length).tolist(), strict=True))
        # All windows are validated at once: one window at a time takes three times as long.
        chunks = pa.chunked_array([arrays[shard][begin:end] for shard, begin, end in spans])
        try:
            chunks.validate(full=True)
        except pa.ArrowInvalid:
            for shard, begin, end in spans:
                self.shards.column(shard, column, begin, end)  # raises an error that names the damaged span
            raise
        return chunks

    def stages_on(self, device: int) -> bool:
        """Returns False: the CPU gathers into its own memory."""
        return False

    def stage(self, rows: Sequence[StagedRows], staging: StagingBuffer) -> None:
        """Gathers rows into a staging buffer: see `StagingReader`."""
        self.shards.check()
        wanted = np.unique(np.concatenate([each.shard[each.count > 0] for each in rows]))
        # The lease is held until `stage` returns: another thread may unmap a shard that no lease holds.
        lease = self.shards.lease(wanted.tolist())
        for each in rows:
            some = each.count > 0
            sources = lease.addresses[each.shard, each.column] + each.first * each.row_bytes
            cpu.gather.gather(sources[some], each.sizes[some], each.address)
