"""Columns of bytes are copied into wider rows, whatever their width and alignment."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.kernels import cpu


@pytest.mark.parametrize("size", [*range(1, 50), 255, 256, 257, 1000])
@pytest.mark.parametrize("rows", [[], [4, 0, 1]])
@pytest.mark.parametrize("before", [0, 4])
def test_parts_are_copied_side_by_side(size: int, rows: list[int], before: int) -> None:
    """Two parts, three other bytes before them, and zeros behind the second. Of the first, some bytes are left out."""
    random = np.random.default_rng(size)
    steps, width = 3, 3 + size + 5 + 2
    one, two = (random.integers(0, 256, (5, steps, bytes_), np.uint8) for bytes_ in (before + size, 5))
    whole = random.integers(0, 256, (5, steps, width), np.uint8)
    expected = whole.copy()
    for row in rows or range(4):
        expected[row, :, 3:] = np.concatenate([one[row, :, before:], two[row], np.zeros((steps, 2), np.uint8)], 1)
    memory = np.concatenate([each.ravel() for each in (whole, one, two)])
    parts = np.zeros(2, cpu.gather.JOIN_PART)
    parts["source"], parts["size"] = [whole.size + before, whole.size + one.size], [size, 5]
    parts["stride"] = [before + size, 5]
    parts["target"], parts["width"], parts["steps"], parts["zeros"] = [3, 3 + size], width, steps, [0, 2]
    cpu.gather.join(memory.ctypes.data, parts, np.array(rows, np.int64), len(rows) or 4)
    assert np.array_equal(memory, np.concatenate([each.ravel() for each in (expected, one, two)]))
