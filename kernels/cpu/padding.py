"""Padding: the rows of a window that no column holds (fill values, repeated rows, step indices)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.native import cached_njit, memcpy, memset, njit_named, pointer
from gear_data.kernels.output_plan import PAD_EXTRAPOLATE, PAD_FILL, PAD_FIRST, TIMESTEP_TYPES


@njit(nogil=True)  # type: ignore[untyped-decorator]
def fill_rows(out, rows, row_bytes, template):  # type: ignore[no-untyped-def]
    """Fills rows at address `out` from a template of at least as many rows.

    Template 0 stands for zero bytes.
    """
    if rows > 0:
        if template == 0:
            memset(out, np.int32(0), np.uint64(rows * row_bytes))
        else:
            memcpy(out, template, np.uint64(rows * row_bytes))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def repeat_row(out, rows, row_bytes, row):  # type: ignore[no-untyped-def]
    """Fills rows at address `out` with copies of the row at address `row`."""
    for i in range(rows):
        memcpy(out + i * row_bytes, row, np.uint64(row_bytes))


def _timestep_writer(dtype: str) -> Any:
    scalar = np.dtype(dtype).type

    @njit_named(f"write_timesteps_{dtype}")  # type: ignore[untyped-decorator]
    def write(out, rows, first):  # type: ignore[no-untyped-def]
        steps = carray(pointer(out), (rows,), scalar)
        for i in range(rows):
            steps[i] = scalar(first + i)

    return write


_write_int64, _write_int32, _write_float32, _write_float64 = (_timestep_writer(name) for name in TIMESTEP_TYPES)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def write_timesteps(out_type, out, rows, first):  # type: ignore[no-untyped-def]
    """Writes first, first + 1, ... to rows at address `out`.

    out_type: an index in TIMESTEP_TYPES.
    """
    if out_type == 0:
        _write_int64(out, rows, first)
    elif out_type == 1:
        _write_int32(out, rows, first)
    elif out_type == 2:
        _write_float32(out, rows, first)
    else:
        _write_float64(out, rows, first)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def pad_window(output, span, out, width):  # type: ignore[no-untyped-def]
    """Writes the padding rows of a window, before and after its valid rows.

    Args:
        output, span: records of OUTPUT_PLAN and SPAN.
        out: address of the window's first row.
        width: rows of the window.
    """
    row_bytes, head, count = output.out_bytes, min(span.head, width), span.count
    tail = width - head - count
    target = out + head * row_bytes
    end = target + count * row_bytes
    if output.padding == PAD_FILL or count == 0:
        fill_rows(out, head, row_bytes, output.fill)
        fill_rows(end, tail, row_bytes, output.fill)
    elif output.padding == PAD_EXTRAPOLATE:
        write_timesteps(output.out_type, out, head, span.first - head + output.origin)
        write_timesteps(output.out_type, end, tail, span.first + count + output.origin)
    else:
        repeat_row(out, head, row_bytes, target)
        repeat_row(end, tail, row_bytes, target if output.padding == PAD_FIRST else end - row_bytes)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _number(positions, segments, first, number):  # type: ignore[no-untyped-def]
    # Indices that count from 0 let the compiler use vector instructions.
    for token in range(len(positions)):
        positions[token] = first + token
    for token in range(len(segments)):
        segments[token] = number


@cached_njit
def number_segments(place, length, skipped, steps, unit, positions, segments, bounds):  # type: ignore[no-untyped-def]
    """Numbers the windows of packed rows, and their tokens. The rest of a row is a segment with the number 0.

    Args:
        place, length: int64 [n], the first step of each window, counted over the steps of all rows, and its steps.
        skipped: int64 [n], the steps of the window that an earlier row has; empty: none.
        steps: steps of a row.
        unit: tokens of a step.
        positions: int64 [rows, tokens], receives the position of each token in its window.
        segments: int32 [rows, tokens], receives the number of the token's window in its row, from 1.
        bounds: int32 [n + rows + 1], receives 0 and the end of each segment, counted over the tokens of all rows.

    Returns:
        The number of segments, and the tokens of the longest.
    """
    rows, tokens = positions.shape
    window, count, longest = 0, 0, np.int64(0)
    bounds[0] = 0
    for row in range(rows):
        end, number = np.int64(0), np.int32(0)
        while window < len(place) and place[window] < (row + 1) * steps:
            first = skipped[window] * unit if len(skipped) else np.int64(0)
            size = length[window] * unit
            number += np.int32(1)
            _number(positions[row, end : end + size], segments[row, end : end + size], first, number)
            end += size
            longest = max(longest, size)
            count += 1
            bounds[count] = row * tokens + end
            window += 1
        if end < tokens:
            _number(positions[row, end:], segments[row, end:], np.int64(0), np.int32(0))
            longest = max(longest, tokens - end)
            count += 1
            bounds[count] = (row + 1) * tokens
    return count, longest
