"""Collector: fills padded batches in one call to a `ColumnReader`.

A batch lies in one leased buffer. The pool uses the buffer again when the last array over it is gone, so no consumer
can see its batch overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import BufferPool, pooled_memory
from gear_data.collection.plan import BatchPlan, CollectSource
from gear_data.collection.reader import OutputBuffers
from gear_data.selection.windows import Int64Array, Windows

_NO_ROWS: Int64Array = np.empty(0, np.int64)


@dataclass(slots=True)  # not frozen: see Windows
class CollectedBatch:
    """A batch: key -> array [B, width, *shape], and its bytes with and without padding."""

    arrays: Mapping[str, npt.NDArray[Any]]
    padded_bytes: int
    valid_bytes: int


class Collector:
    """Fills batches of given outputs.

    Args:
        sources, rows, batches: see `BatchPlan`; batches with fewer rows are allowed.
        reuse: see `BufferPool`.

    Raises:
        InvalidArgumentError, UnsupportedColumnError: see `BatchPlan`.
    """

    def __init__(self, sources: Sequence[CollectSource], rows: int, *, batches: int = 1, reuse: bool) -> None:
        self._readers = [source.reader for source in sources]
        self._plan = BatchPlan(sources, rows, batches)
        self._pool = BufferPool(self._plan.size, self._plan.offsets, reuse=reuse)

    def collect(self, windows: Windows, batches: int = 1) -> list[CollectedBatch]:
        """Collects batches of windows of the first dataset, one row for each window.

        Args:
            windows: of all batches, one batch after another, all of one size.
            batches: number of batches. Batches collected in one call share a buffer; the pool uses the buffer again
                when all of them are gone.
        """
        rows = len(windows) // batches
        buffer, addresses = self._pool.lease()
        memory = pooled_memory(buffer)
        valid = np.empty(batches, np.int64)
        self._readers[0].read(
            windows, OutputBuffers(self._plan.plans[0], addresses, _NO_ROWS, max(1, rows), valid, memory)
        )
        return [
            self._batch(buffer, number * rows, rows, valid_bytes) for number, valid_bytes in enumerate(valid.tolist())
        ]

    def collect_joined(self, windows: Windows, source: Int64Array) -> CollectedBatch:
        """Collects one batch whose row i is window i, of dataset number source[i] (int64 [B])."""
        buffer, addresses = self._pool.lease()
        memory = pooled_memory(buffer)
        total = 0
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            valid = np.empty(1, np.int64)
            buffers = OutputBuffers(self._plan.plans[number], addresses, rows, len(rows), valid, memory)
            self._readers[number].read(windows[rows], buffers)
            total += int(valid[0])
        return self._batch(buffer, 0, len(windows), total)

    def _batch(self, buffer: npt.NDArray[np.uint8], first: int, rows: int, valid_bytes: int) -> CollectedBatch:
        arrays = {
            array.key: np.ndarray((rows, *array.shape), array.dtype, buffer, array.offset + first * array.row_bytes)
            for array in self._plan.arrays
        }
        return CollectedBatch(arrays, rows * self._plan.row_bytes, valid_bytes)
