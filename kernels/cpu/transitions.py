"""Transitions: the next state of a step, and rows of single steps.

An episode of T steps has the states 0 to T. State T is the final observation. It is the next state of the last step if
it is stored, or if the last step is terminal: then no value is read from the state. Else the states end at T - 1. The
hop of step t is the number of steps from t to its next state: at most n, and at most the number of steps up to the
first terminal one. It is 0 for a last step without a next state.

A batch of transitions has one short row for each window. To locate spans and padding would take longer than to copy
such rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types

from gear_data.kernels.cpu.native import address_of, cached_njit, call, int64s, memcpy, pointer, prefetch
from gear_data.kernels.cpu.padding import fill_rows
from gear_data.kernels.output_plan import COLUMN_KINDS, KIND_COPY, KIND_HOP, OUTPUT_PLAN

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
def find_hops(output, episode, start, episode_steps, finals, shard, row, addresses, following):  # type: ignore[no-untyped-def]
    """Finds the next state of each window's first step.

    Args:
        following: int64 [3, B], receives the results of `hop_of`, and where the state is: IS_STEP, NO_STATE, or the row
            of the final observation.
        output, episode, start, episode_steps, finals, shard, row, addresses: see `collect`.
    """
    hops, ended, places = following
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


@cached_njit
def _write_single(output, out, table, count, addresses, columns, following):  # type: ignore[no-untyped-def]
    """Fills an output of single rows: see `single_writer_of`."""
    plan = carray(pointer(output), (1,), OUTPUT_PLAN)[0]
    windows, states = carray(pointer(table), (4, count), np.int64), carray(pointer(following), (3, count), np.int64)
    shard, row, left, number = windows[0], windows[1], windows[2], windows[3]
    hops, ended, places = states[0], states[1], states[2]
    column, kind, row_bytes, source_bytes = plan.column, plan.kind, plan.out_bytes, plan.source_bytes
    of_shards = int64s(addresses, 1 << 40)
    for place in range(count + _AHEAD):
        if place < count:
            ahead = of_shards[shard[place] * columns + column] + row[place] * source_bytes
            prefetch(ahead)
            prefetch(ahead + source_bytes - 1)
        b = place - _AHEAD
        if b < 0:
            continue
        target = out + number[b] * row_bytes
        if kind == KIND_HOP:
            memcpy(target, plan.valid + (hops[b] + (plan.horizon + 1) * ended[b]) * row_bytes, np.uint64(row_bytes))
            continue
        source = of_shards[shard[b] * columns + column] + row[b] * source_bytes
        if plan.shift > 0:
            if places[b] == IS_STEP:
                source += hops[b] * source_bytes
            elif places[b] != NO_STATE and plan.finals:
                source = plan.finals + places[b] * source_bytes
            else:
                fill_rows(target, np.int64(1), row_bytes, plan.fill)
                continue
        if kind == KIND_COPY:
            # A reader of another node may have written the row to the output already.
            if source != target:
                memcpy(target, source, np.uint64(row_bytes))
        else:
            summed = max(hops[b], np.int64(1)) if plan.hops else left[b]
            call(plan.write, (output, source, target, np.int64(1), summed))


def single_writer_of(output: Any) -> int:
    """Returns the address of the kernel that fills an output of one short row for each window; 0: it has other rows.

    The row is of the window's first step, or of its next state. The kernel's arguments are int64: the address of the
    output's record of OUTPUT_PLAN, and of its array; the address of int64 [4, B], each window's shard, the row of its
    first step there, the steps from there to the end of its episode, and the row that it fills; B; the address and the
    columns of `addresses` of `collect`; and the address of `following` of `find_hops`.

    Args:
        output: a record of OUTPUT_PLAN.
    """
    if output["kind"] not in COLUMN_KINDS or output["width"] != 1 or output["first"] != 0:
        return 0
    of_state = output["hops"] != 0 and output["shift"] >= 0
    if output["shift"] == 0:
        single = output["source_bytes"] <= _SHORT_BYTES or of_state
    else:
        single = output["source_bytes"] <= _SHORT_BYTES and of_state
    return address_of(_write_single, (types.int64,) * 7) if single else 0
