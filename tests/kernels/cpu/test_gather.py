"""Columns of bytes are copied into wider rows, whatever their width and alignment."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.kernels import cpu


@pytest.mark.parametrize("size", [*range(1, 50), 255, 256, 257, 1000])
def test_columns_are_written_between_others(size: int) -> None:
    random = np.random.default_rng(size)
    for first in (0, 3):
        whole = random.integers(0, 256, (7, size + 8), np.uint8)
        part = random.integers(0, 256, (7, size), np.uint8)
        expected = whole.copy()
        expected[:, first : first + size] = part
        cpu.gather.write_columns(part, whole, first)
        assert np.array_equal(whole, expected)


def test_columns_of_some_rows_are_written() -> None:
    random = np.random.default_rng(1)
    whole, part = random.integers(0, 256, (5 * 3, 40), np.uint8), random.integers(0, 256, (5 * 3, 12), np.uint8)
    expected = whole.copy()
    for row in (4, 0, 1):
        expected[3 * row : 3 * row + 3, 8:20] = part[3 * row : 3 * row + 3]
    cpu.gather.write_columns_of_rows(part, whole, 8, np.array([4, 0, 1]), 3)
    assert np.array_equal(whole, expected)
