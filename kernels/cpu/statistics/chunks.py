"""Statistics of the elements of chunks: all steps of windows that begin at each step of episodes.

The elements of a chunk's k-th step are the column shifted by k steps, minus another column. They are made in short runs
of windows, and read while they are in the cache. The runs of an episode begin at its first step, so they do not depend
on the other episodes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import cached_njit
from gear_data.kernels.cpu.statistics.digits import count_column
from gear_data.kernels.cpu.statistics.sums import add_exactly, add_rows

#: Windows of a run.
_RUN = 256
#: The sign of a float64, and the largest key.
_SIGN, _MOST = np.uint64(1 << 63), np.uint64((1 << 64) - 1)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _fill(values, state, begin, length, first, last, steps, k, elements, delta, rows):  # type: ignore[no-untyped-def]
    """Writes the k-th steps of the windows of an episode that begin at the steps first to last - 1.

    Returns the number of rows: a step outside the episode has none.

    Args:
        values, state: float64 [n, width] and [n, size], the columns.
        begin, length: the first row of the episode, and its steps.
        steps: int64 [chunk], the steps of a chunk relative to its window's first step.
        elements: int64 [width], the element of `state` that is subtracted; -1: none.
        delta: whether a step is relative to the step before it, except the first one of a chunk in the episode.
        rows: float64 [windows, width].
    """
    low, high = max(first, -steps[k]), min(last, length - steps[k])
    for window in range(low, high):
        step = window + steps[k]
        own, row = values[begin + step], rows[window - low]
        before = step - 1
        if delta and k > 0 and before >= 0:
            other = values[begin + before]
            for j in range(len(elements)):
                row[j] = own[j] - other[j] if elements[j] >= 0 else own[j]
        else:
            other = state[begin + window]
            for j in range(len(elements)):
                row[j] = own[j] - other[elements[j]] if elements[j] >= 0 else own[j]
    return max(high - low, 0)


@cached_njit
def sum_chunks(values, state, lengths, steps, elements, delta, groups, counts, limbs, low, high):  # type: ignore[no-untyped-def]
    """Adds the elements of all chunks of episodes to exact sums.

    Args:
        values, state, steps, elements, delta: see `_fill`.
        lengths: int64 [episodes], the steps of each episode.
        groups: int64 [chunk], the group of statistics to which each step of a chunk belongs.
        counts: int64 [groups], the number of steps.
        limbs: int64 [groups, 2, width, LIMBS], the sums of values and of squares.
        low, high: float64 [groups, width].
    """
    width = len(elements)
    rows, sums, value = np.empty((_RUN, width)), np.empty((4, width)), np.empty(1)
    bits = value.view(np.uint64)
    begin = 0
    for length in lengths:
        for first in range(0, length, _RUN):
            last = min(first + _RUN, length)
            for k in range(len(steps)):
                group = groups[k]
                count = _fill(values, state, begin, length, first, last, steps, k, elements, delta, rows)
                counts[group] += count
                sums[:] = 0.0
                add_rows(rows, count, sums, low[group], high[group])
                for part in range(4):
                    for j in range(width):
                        value[0] = sums[part, j]
                        add_exactly(limbs[group, part // 2, j], value, bits)
        begin += length


@cached_njit
def count_chunk_digits(values, state, lengths, steps, elements, delta, groups, shift, prefixes, counts):  # type: ignore[no-untyped-def]
    """Counts the digits of the elements of all chunks of episodes.

    Args:
        values, state, lengths, steps, elements, delta, groups: see `sum_chunks`.
        shift: uint64, the digit's lowest bit.
        prefixes: uint64 [groups * width, n], the bits above the digit.
        counts: int64 [groups * width, n, 2^DIGIT_BITS].
    """
    width = len(elements)
    rows = np.empty((_RUN, width))
    bits = rows.view(np.uint64)
    begin = 0
    for length in lengths:
        for first in range(0, length, _RUN):
            last = min(first + _RUN, length)
            for k in range(len(steps)):
                place = groups[k] * width
                count = _fill(values, state, begin, length, first, last, steps, k, elements, delta, rows)
                for i in range(count):
                    for j in range(width):
                        # Keys in the order of the values: a negative number has all its bits turned.
                        key = bits[i, j]
                        bits[i, j] = key ^ (np.uint64(np.int64(key) >> np.int64(63)) | _SIGN)
                for j in range(width):
                    count_column(bits[:count, j], np.uint64(0), _MOST, shift, prefixes[place + j], counts[place + j])
        begin += length
