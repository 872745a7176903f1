"""Padding: the rows of a window that no column holds (fill values, repeated rows, step indices)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.native import memcpy, memset, njit_named, pointer
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
def pad_window(output, span, out):  # type: ignore[no-untyped-def]
    """Writes the padding rows of a window, before and after its valid rows.

    Args:
        output, span: records of OUTPUT_PLAN and SPAN.
        out: address of the window's first row.
    """
    row_bytes, head, count = output.out_bytes, span.head, span.count
    tail = output.width - head - count
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
