"""PackedKeys: the numbers that attention over packed rows needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gear_data.collection.buffers import Allocate, BufferPool
from gear_data.kernels import cpu
from gear_data.loaders.presets.packed import CU_SEQLENS, MAX_SEQLEN, POSITION_IDS, SEGMENT_IDS
from gear_data.selection.windows import Windows

_NONE_SKIPPED = np.empty(0, np.int64)


class PackedKeys:
    """Makes `position_ids`, `segment_ids`, `cu_seqlens` and `max_seqlen` of batches of packed rows.

    Args:
        rows: the most rows of a batch.
        tokens: tokens of a row.
        unit: tokens of a step.
        reuse, allocate: see `BufferPool`.
    """

    def __init__(self, rows: int, tokens: int, unit: int, *, reuse: bool, allocate: Allocate) -> None:
        self._tokens, self._unit, self._split = tokens, unit, 8 * rows * tokens
        self._pool = BufferPool(12 * rows * tokens, lambda memory: None, reuse=reuse, allocate=allocate)

    def __call__(self, windows: Windows) -> dict[str, Any]:
        """Returns the arrays: int64 [rows, tokens], int32 [rows, tokens], int32 [n + 1]; and an int."""
        packing = windows.packing
        if packing is None:
            return {}
        memory, _ = self._pool.lease()
        shape = packing.rows, self._tokens
        positions = np.ndarray(shape, np.int64, memory)
        segments = np.ndarray(shape, np.int32, memory, self._split)
        bounds = np.empty(len(windows) + packing.rows + 1, np.int32)
        place, sizes, steps, unit = packing.place, windows.length, packing.steps, self._unit
        if packing.sizes is not None:
            sizes, place, unit = packing.sizes, np.empty_like(place), 1
            cpu.windows.place_in_rows(packing.place // steps, sizes, self._tokens, place)
            steps = self._tokens
        count, longest = cpu.padding.number_segments(
            place,
            sizes,
            _NONE_SKIPPED if packing.skipped is None else packing.skipped,
            steps,
            unit,
            positions,
            segments,
            bounds,
        )
        return {
            POSITION_IDS: positions,
            SEGMENT_IDS: segments,
            CU_SEQLENS: bounds[: count + 1],
            MAX_SEQLEN: int(longest),
        }
