"""Outputs with one row for each window: no padding, except where a next state is missing.

Such rows are short, so that locating spans and padding would take longer than copying. Nothing is prefetched: short
copies overlap anyway, and prefetching made them slower.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.convert import convert_rows, sum_discounted_rows
from gear_data.kernels.cpu.native import memcpy
from gear_data.kernels.cpu.padding import fill_rows
from gear_data.kernels.output_plan import COLUMN_KINDS, KIND_COPY, KIND_DISCOUNTED, KIND_HOP

#: Longer rows are prefetched, as windows are.
_SHORT_BYTES = 512
#: The next state is a step of the episode; there is no next state, or the final observation is not stored.
IS_STEP, NO_STATE = -2, -1


@njit(nogil=True)  # type: ignore[untyped-decorator]
def is_single(output):  # type: ignore[no-untyped-def]
    """Returns whether the output has only a short row of the window's first step, or of its next state."""
    if output.kind not in COLUMN_KINDS or output.width != 1 or output.first != 0:
        return False
    short = output.source_bytes <= _SHORT_BYTES or (output.hops != 0 and output.shift == 0)
    return short and (output.shift == 0 or (output.hops != 0 and output.shift > 0))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def write_single_rows(  # type: ignore[no-untyped-def]
    output, out, shard, row, left, addresses, row_of_window, hops, ended, places
):
    """Fills an output of `is_single`.

    Args:
        output: a record of OUTPUT_PLAN.
        out: address of the output's array.
        shard: int64 [B], the shard of each window.
        row: int64 [B], the row of each window's first step in its shard.
        left: int64 [B], steps from each window's first step to the end of its episode.
        addresses, row_of_window: see `gear_data.kernels.cpu.collect.collect`.
        hops, ended: int64 and bool [B], see `gear_data.kernels.cpu.hops`; empty if the output has no hops.
        places: int64 [B], where the next state is: IS_STEP, NO_STATE, or the row of the final observation; empty if the
            output has no hops.
    """
    column, kind, row_bytes, source_bytes = output.column, output.kind, output.out_bytes, output.source_bytes
    in_order, next_state = len(row_of_window) == 0, output.shift > 0
    for b in range(len(row)):
        target = out + (b if in_order else row_of_window[b]) * row_bytes
        if kind == KIND_HOP:
            memcpy(target, output.valid + (hops[b] + (output.horizon + 1) * ended[b]) * row_bytes, np.uint64(row_bytes))
            continue
        source = addresses[shard[b], column] + row[b] * source_bytes
        if next_state:
            if places[b] == IS_STEP:
                source += hops[b] * source_bytes
            elif places[b] != NO_STATE and output.finals:
                source = output.finals + places[b] * source_bytes
            else:
                fill_rows(target, 1, row_bytes, output.fill)
                continue
        if kind == KIND_COPY:
            # A reader of another node may have written the row to the output already.
            if source != target:
                memcpy(target, source, np.uint64(row_bytes))
        elif kind == KIND_DISCOUNTED:
            sum_discounted_rows(output, source, target, 1, max(hops[b], np.int64(1)) if output.hops else left[b])
        else:
            convert_rows(output, source, target, 1)
