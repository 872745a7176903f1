"""The rows that a window reads, against a loop over all rows of all outputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data.kernels.cpu.row_ranges import to_episodes, to_packed
from gear_data.residency.row_ranges import ColumnReads, RowRange
from gear_data.selection.windows import Windows

reaches = st.builds(
    RowRange,
    first=st.integers(-5, 5),
    width=st.integers(1, 6),
    within=st.booleans(),
    shift=st.sampled_from([-1, 0, 1]),
    horizon=st.integers(1, 4),
)


def rows_read(reach: RowRange, start: int, length: int, total: int) -> set[int]:
    """Returns the rows that an output reads, by the definition of `Output`.

    These are its steps, shifted, and the steps that are summed with each.
    """
    steps = range(start + reach.first, start + reach.first + reach.width)
    valid = [t for t in steps if (start <= t < start + length if reach.within else 0 <= t < total)]
    return {t + reach.shift + k for t in valid for k in range(reach.horizon) if 0 <= t + reach.shift + k < total}


@given(data=st.data(), found=st.lists(reaches, min_size=1, max_size=3), total=st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_rows_are_those_from_the_first_to_the_last_that_any_output_reads(
    data: st.DataObject, found: list[RowRange], total: int
) -> None:
    start = data.draw(st.integers(0, total - 1))
    length = data.draw(st.integers(1, total - start))
    windows = Windows(*(np.array([value, value]) for value in (0, start, length)))
    low, count = ColumnReads((0,), tuple(found)).rows(windows, np.array([total, total]))
    expected = set().union(*(rows_read(reach, start, length, total) for reach in found))
    assert low[0] == low[1] and count[0] == count[1]
    if expected:
        # A run without gaps: rows between two read rows are staged, too. Rows outside are not.
        assert low[0] <= min(expected) and max(expected) < low[0] + count[0]
        assert low[0] >= 0 and low[0] + count[0] <= total
    if len(found) == 1 and expected:
        assert (low[0], count[0]) == (min(expected), max(expected) + 1 - min(expected))


@pytest.mark.parametrize("seed", range(5))
def test_addresses_lead_to_local_rows_and_to_staged_rows(seed: int) -> None:
    """Every row that a window reads is at its address, staged or not."""
    rng = np.random.default_rng(seed)
    batch, columns, row_bytes = 6, np.array([2, 0]), np.array([8, 4])
    start, low = rng.integers(0, 50, batch), rng.integers(0, 9, batch)
    wanted = rng.integers(0, 4, batch)
    # Window 0 has all columns here, window 1 has one.
    addresses = np.zeros((batch, 3), np.int64)
    addresses[0], addresses[1, 0] = (1000, 2000, 3000), 4000
    shards, count, away = addresses.copy(), wanted.copy(), np.zeros(2, np.bool_)
    to_episodes(addresses, columns, row_bytes, start, count, away)
    assert away.all() and count.tolist() == [0, *wanted[1:]]
    for window, (column, size) in itertools.product(range(batch), zip(columns, row_bytes, strict=True)):
        assert addresses[window, column] == shards[window, column] + start[window] * size
    assert addresses[0, 1] == 2000
    spans, parts = np.array([5, 1, 3, 0]), np.array([10_000, 20_000])
    before = addresses.copy()
    to_packed(addresses, columns, row_bytes, parts, spans, low, count)
    for column, size, part in zip(columns, row_bytes, parts, strict=True):
        place = part
        for window in spans:
            for row in range(low[window], low[window] + count[window]):
                assert addresses[window, column] + row * size == place
                place += size
    for window in (0, 2, 4):  # all columns here, or in no piece
        assert (addresses[window] == before[window]).all()
    other = before.copy()
    to_packed(other, columns, row_bytes, np.array([0, 20_000]), spans, low, count)
    assert (other[:, 2] == before[:, 2]).all() and (other[:, 0] == addresses[:, 0]).all()
