"""Nested Arrow lists."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.errors import (
    UnsupportedColumnError,
)
from gear_data.exports.nested import nested_episodes, nested_rows


def test_lists_beyond_32_bit_offsets_are_refused() -> None:
    """The arrays are views of one number, so they take no memory."""
    rows = np.broadcast_to(np.uint8(0), (1 << 16, 1 << 15))
    with pytest.raises(UnsupportedColumnError, match="2,147,483,648 elements") as error:
        nested_rows(rows, "pixels")
    assert error.value.column == "pixels"
    with pytest.raises(UnsupportedColumnError):
        nested_rows(np.broadcast_to(np.uint8(0), (1 << 11, 1 << 10, 1 << 10)))
    steps, offsets = np.broadcast_to(np.uint8(0), 1 << 31), np.array([0, 1 << 31])
    with pytest.raises(UnsupportedColumnError) as error:
        nested_episodes(steps, offsets, "rewards")
    assert error.value.column == "rewards"
