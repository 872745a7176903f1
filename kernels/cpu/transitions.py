"""Transitions: the next state of a step, and rows of single steps.

An episode of T steps has the states 0 to T. State T is the final observation. It is the next state of the last step if
it is stored, or if the last step is terminal: then no value is read from the state. Else the states end at T - 1. The
hop of step t is the number of steps from t to its next state: at most n, and at most the number of steps up to the
first terminal one. It is 0 for a last step without a next state.

A batch of transitions has one short row for each window. To locate spans and padding would take longer than to copy
such rows.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.convert import convert_rows, sum_discounted_rows
from gear_data.kernels.cpu.native import memcpy, pointer, prefetch
from gear_data.kernels.cpu.padding import fill_rows
from gear_data.kernels.output_plan import COLUMN_KINDS, KIND_COPY, KIND_DISCOUNTED, KIND_HOP

#: Longer rows are prefetched, as windows are.
_SHORT_BYTES = 512
#: The kernel prefetches the row of the window this many windows ahead.
_AHEAD = 16
#: The next state is a step of the episode; there is no next state, or the final observation is not stored.
IS_STEP, NO_STATE = -2, -1


@njit(nogil=True)  # type: ignore[untyped-decorator]
def hop_of(flags, step, total, most, has_final):  # type: ignore[no-untyped-def]
    """Returns (hop, whether the last step of the hop is terminal).

    Args:
        flags: address of the uint8 flag of `step`, and of the flags of the steps after it.
        step: the step in its episode.
        total: steps of the episode.
        most: n, the longest hop.
        has_final: whether the episode's final observation is a next state.
    """
    left = min(most, total - step)
    ended = carray(pointer(flags), (left,), np.uint8)
    for j in range(left):
        if ended[j]:
            return np.int64(j + 1), True
    if step + left == total and not has_final:
        return np.int64(left - 1), False
    return np.int64(left), False


@njit(nogil=True)  # type: ignore[untyped-decorator]
def find_hops(output, episode, start, episode_steps, finals, shard, row, addresses, hops, ended, places):  # type: ignore[no-untyped-def]
    """Finds the next state of each window's first step.

    Args:
        hops, ended: int64 and bool [B], receive the results of `hop_of`.
        places: int64 [B], receives where the state is: see `write_single_rows`.
        output, episode, start, episode_steps, finals, shard, row, addresses: see `collect`.
    """
    for place in range(len(episode) + _AHEAD):
        if place < len(episode):
            prefetch(addresses[shard[place], output.ends] + row[place])
        b = place - _AHEAD
        if b < 0:
            continue
        final = finals[episode[b]] if len(finals) else np.int64(-1)
        flags = addresses[shard[b], output.ends] + row[b]
        hop, end = hop_of(flags, start[b], episode_steps[b], output.hops, output.reach != 0 and final >= 0)
        hops[b], ended[b] = hop, end
        if hop == 0:
            places[b] = NO_STATE
        elif start[b] + hop < episode_steps[b]:
            places[b] = IS_STEP
        else:
            places[b] = final


@njit(nogil=True)  # type: ignore[untyped-decorator]
def is_single(output):  # type: ignore[no-untyped-def]
    """Returns whether the output has one short row.

    It is of the window's first step, or of its next state.
    """
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
    for place in range(len(row) + _AHEAD):
        if place < len(row):
            ahead = addresses[shard[place], column] + row[place] * source_bytes
            prefetch(ahead)
            prefetch(ahead + source_bytes - 1)
        b = place - _AHEAD
        if b < 0:
            continue
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
                fill_rows(target, np.int64(1), row_bytes, output.fill)
                continue
        if kind == KIND_COPY:
            # A reader of another node may have written the row to the output already.
            if source != target:
                memcpy(target, source, np.uint64(row_bytes))
        elif kind == KIND_DISCOUNTED:
            sum_discounted_rows(
                output, source, target, np.int64(1), max(hops[b], np.int64(1)) if output.hops else left[b]
            )
        else:
            convert_rows(output, source, target, np.int64(1))
