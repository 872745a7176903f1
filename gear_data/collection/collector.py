"""Collector: fills padded batches in one call to a `ColumnReader`.

A batch lies in one leased buffer. The pool uses the buffer again when the last array over it is gone, so the memory of
a batch is never overwritten while a consumer holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import BufferPool, plain_memory
from gear_data.collection.mapped_sources import MappedSources
from gear_data.collection.plan import BatchPlan, CollectSource
from gear_data.collection.reader import OutputBuffers
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array, Packing, Windows

#: `OutputBuffers.row_of_window` if window b fills row b.
_IN_ORDER: Int64Array = np.empty(0, np.int64)


@dataclass(slots=True)  # not frozen: see Windows
class CollectedBatch:
    """A batch: key -> array [B, width, *shape], and its sizes in bytes.

    `padded_bytes` include padding, `valid_bytes` do not.
    """

    arrays: dict[str, npt.NDArray[Any]]
    padded_bytes: int
    valid_bytes: int


class Collector:
    """Fills batches of given outputs. Safe to call from several threads.

    Args:
        sources: the datasets of a batch, one or several; see `BatchPlan`.
        rows: the most rows of a batch.
        batches: the most batches of one call of `collect_together`.
        pack: see `BatchPlan`.
        reuse: whether the memory of a batch is used again after the batch is gone; see `BufferPool`.
        allocate: see `BufferPool`.

    Raises:
        InvalidArgumentError, UnsupportedColumnError: see `BatchPlan`.
    """

    def __init__(
        self, sources: Sequence[CollectSource], rows: int, *, batches: int = 1, pack: int = 0, reuse: bool,
        allocate: Callable[[int], npt.NDArray[np.uint8]] = plain_memory,
    ) -> None:  # fmt: skip
        self._readers = [source.reader for source in sources]
        self._plan = BatchPlan(sources, rows, batches, pack)
        for plan in self._plan.plans:
            cpu.collect.link(plan)
        self._mapped = MappedSources(self._readers, self._plan) if len(sources) > 1 else None
        self._row_bytes = np.array(self._plan.row_bytes)
        self._lists = len(self._plan.lists[0].arrays) > 0
        self._joins = len(self._plan.joins[0]) > 0 or len(self._plan.relatives[0]) > 0
        # Not a method: the cycle would keep the datasets, and their files, until a garbage collection.
        describe = partial(_output_buffers, self._plan, batches, reuse)
        self._pool = BufferPool(self._plan.size, describe, reuse=reuse, allocate=allocate)
        self._arrays = [(each.key, each.shape, each.dtype, each.offset) for each in self._plan.arrays]

    def __call__(self, windows: Windows) -> CollectedBatch:
        """Collects a batch, one row for each window, or the rows of packed windows."""
        memory, buffers = self._pool.lease()
        rows = len(windows.start)
        if windows.packing is not None:
            rows = windows.packing.rows
            valid_bytes = self._read_packed(windows, windows.packing, memory, buffers)
            padded_bytes = rows * self._plan.row_bytes[0]
        elif isinstance(windows.source, int):
            buffers.windows_per_batch = rows or 1
            self._readers[0].read(windows, buffers)
            valid_bytes = int(buffers.valid[0])
            # Tested here: one call less for every batch.
            if self._joins:
                self._join(memory, 0, _IN_ORDER, rows)
            if self._lists:
                self._plan.lists[0].take(memory, _IN_ORDER, rows)
            padded_bytes = rows * self._plan.row_bytes[0]
        else:
            valid_bytes = self._read_joined(windows, windows.source, memory, buffers)
            padded_bytes = int(self._row_bytes[windows.source].sum())
        arrays = {}
        # Every array keeps the lease of the buffer alive.
        for key, shape, dtype, offset in self._arrays:
            arrays[key] = np.ndarray((rows, *shape), dtype, memory, offset)
        return CollectedBatch(arrays, padded_bytes, valid_bytes)

    def _read_joined(
        self, windows: Windows, source: Int64Array, memory: npt.NDArray[np.uint8], buffers: OutputBuffers
    ) -> int:
        """Reads window i from dataset source[i], int64 [B]; returns the valid bytes."""
        valid_bytes, others = (0, [0]) if self._mapped is None else self._mapped.read(windows, source, memory)
        plan, address = self._plan, memory.ctypes.data
        for number in others:
            rows = (source == number).nonzero()[0]
            if not len(rows):
                continue
            valid = np.empty(1, np.int64)
            addresses = plan.offsets[number] + address
            own = OutputBuffers(plan.plans[number], addresses, rows, len(rows), valid, buffers.memory)
            self._readers[number].read(windows[rows], own)
            self._join(memory, number, rows, len(rows))
            plan.lists[number].take(memory, rows, len(rows))
            valid_bytes += int(valid[0])
        return valid_bytes

    def _read_packed(
        self, windows: Windows, packing: Packing, memory: npt.NDArray[np.uint8], buffers: OutputBuffers
    ) -> int:
        """Reads windows into packed rows, each of one dataset; returns the valid bytes."""
        valid_bytes, plan, address = 0, self._plan, memory.ctypes.data
        ends = packing.ends(windows.length)
        for number, reader in enumerate(self._readers):
            own, place, rows = windows, packing.place, np.arange(packing.rows)
            if not isinstance(windows.source, int):
                chosen = (windows.source == number).nonzero()[0]
                own, place = windows[chosen], place[chosen]
                rows = np.unique(place // packing.steps)
            valid = np.zeros(1, np.int64)
            addresses = plan.offsets[number] + address
            if len(own):
                filled = OutputBuffers(plan.plans[number], addresses, place, len(own), valid, buffers.memory)
                reader.read(own, filled)
            cpu.collect.fill_rest(plan.plans[number], addresses, rows, ends[rows], packing.steps)
            self._join(memory, number, rows, len(rows))
            valid_bytes += int(valid[0])
        return valid_bytes

    def _join(self, memory: npt.NDArray[np.uint8], number: int, rows: Int64Array, count: int) -> None:
        """Makes arrays of the parts of some rows of a dataset: joined arrays, and relative ones."""
        for relative in self._plan.relatives[number]:
            relative.write(memory.ctypes.data, rows, count)
        parts = self._plan.joins[number]
        if len(parts):
            cpu.gather.join(memory.ctypes.data, parts, rows, count)

    def collect_together(self, windows: Windows, batches: int) -> list[CollectedBatch]:
        """Collects several batches of the first dataset in one read.

        The batches share a buffer. The pool uses the buffer again when all of them are gone.

        Args:
            windows: the windows of all batches, one batch after another. All batches have the same size.
            batches: number of batches.
        """
        memory, buffers = self._pool.lease()
        rows = len(windows) // batches
        buffers.windows_per_batch = rows or 1
        self._readers[0].read(windows, buffers)
        plan = self._plan
        self._join(memory, 0, _IN_ORDER, len(windows))
        plan.lists[0].take(memory, _IN_ORDER, len(windows))
        return [
            CollectedBatch(
                {
                    each.key: np.ndarray(
                        (rows, *each.shape), each.dtype, memory, each.offset + number * rows * each.row_bytes
                    )
                    for each in plan.arrays
                },
                rows * plan.row_bytes[0],
                valid_bytes,
            )
            for number, valid_bytes in enumerate(buffers.valid[:batches].tolist())
        ]


def _output_buffers(plan: BatchPlan, batches: int, reuse: bool, memory: npt.NDArray[np.uint8]) -> OutputBuffers:
    """Returns the `OutputBuffers` that come with every lease of a new buffer."""
    addresses = plan.offsets[0] + memory.ctypes.data
    valid = np.empty(batches, np.int64)
    return OutputBuffers(plan.plans[0], addresses, _IN_ORDER, 1, valid, memory if reuse else None)
