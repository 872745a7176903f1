"""Windows read from shards that this process has mapped, whatever the residency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.collection.reader import OutputBuffers
from gear_data.residency.device.staging import StagedRows, StagingBuffer
from gear_data.residency.shards import Shards
from gear_data.selection.windows import Int64Array, Windows
from gear_data.storage.reader import ShardLease

Finals = Callable[[], tuple[Int64Array, dict[str, npt.NDArray[Any]]]]


class ShardReader:
    """A `ColumnReader` over mapped shards.

    Args:
        shards: the mapped shards.
        shard, start, length: int64 [episodes], from the episode table.
        finals: gives int64 ids of the episodes with a final observation, ascending, and the columns of those.

    Attributes:
        final_rows: int64 [episodes]: each one's row among the final observations, -1 without; empty: nobody asked.
    """

    def __init__(
        self, shards: Shards, shard: Int64Array, start: Int64Array, length: Int64Array, finals: Finals
    ) -> None:
        # Bound here: importing in `read` would cost time at every batch.
        from gear_data.kernels.cpu.collect import collect

        self._collect = collect
        self.shards = shards
        self.shard = shard
        self.start = start
        self.length = length
        self._finals = finals
        self.final_rows: Int64Array = np.empty(0, np.int64)
        self._final_columns: dict[str, npt.NDArray[Any]] = {}

    def final_address(self, column: str) -> int:
        ids, columns = self._finals()
        if column not in columns or not len(ids):
            return 0
        if not len(self.final_rows):
            self.final_rows = np.full(len(self.length), -1, np.int64)
            self.final_rows[ids] = np.arange(len(ids))
        self._final_columns[column] = np.ascontiguousarray(columns[column])
        return int(self._final_columns[column].ctypes.data)

    def final_values(self, address: int) -> npt.NDArray[Any]:
        """The final observations at an address that `final_address` gave."""
        return next(values for values in self._final_columns.values() if values.ctypes.data == address)

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        shards = self.shard[windows.episode_id]
        first = self.start[windows.episode_id] + windows.start
        arrays = {shard: self.shards.values(shard, column) for shard in np.unique(shards).tolist()}
        spans = list(zip(shards.tolist(), first.tolist(), (first + windows.length).tolist(), strict=True))
        # All at once: window by window takes three times as long.
        chunks = pa.chunked_array([arrays[shard][begin:end] for shard, begin, end in spans])
        try:
            chunks.validate(full=True)
        except pa.ArrowInvalid:
            for shard, begin, end in spans:
                self.shards.column(shard, column, begin, end)  # raises for the damaged one, and says where it is
            raise
        return chunks

    def stages_on(self, device: int) -> bool:
        """Never: the CPU gathers, and writes to its own memory."""
        return False

    def stage(self, rows: Sequence[StagedRows], stage: StagingBuffer) -> None:
        """See `StagingReader`."""
        from gear_data.kernels.cpu.gather import gather

        wanted = np.unique(np.concatenate([each.shard[each.count > 0] for each in rows]))
        # Held till all is gathered: of a remote dataset another thread may let a shard go.
        lease = self.shards.lease(wanted.tolist())
        for each in rows:
            some = each.count > 0
            sources = lease.addresses[each.shard, each.column] + each.first * each.row_bytes
            gather(sources[some], each.sizes[some], each.place)

    def read(self, windows: Windows, places: OutputBuffers) -> None:
        if self.shards.all_mapped:
            lease = ShardLease(self.shards.addresses)
        else:
            # Held till the end: of a remote dataset another thread may let a shard go that this one does not hold.
            lease = self.shards.lease(np.unique(self.shard[windows.episode_id]).tolist())
        self._collect(
            windows.episode_id,
            windows.start,
            windows.length,
            places.rows,
            self.shard,
            self.start,
            self.length,
            self.final_rows,
            lease.addresses,
            places.plan,
            places.addresses,
            places.per,
            places.valid,
        )
