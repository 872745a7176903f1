"""The CPU collector: one serial `nogil` call fills every column of a batch.

Not `prange`: after it a forked child dies, and a busy core stalls it by milliseconds. Parallelism is across
batches, in prefetch threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from gear_data.kernels.native import memcpy, memset, pointer, prefetch

#: What is written to an output's valid rows.
KIND_COPY = 0  # the column's bytes
KIND_CONVERT = 1  # (value - mean) * scale of every element, computed in float64
KIND_TIMESTEP = 2  # int64 step number in the episode
KIND_CONSTANT = 3  # the template at VALID (masks)

#: Fields of a plan's row; a plan is int64 [outputs, PLAN_FIELDS].
(
    KIND,
    COLUMN,  # index of the source column
    SOURCE_BYTES,  # bytes of a source row
    OUT_BYTES,  # bytes of an output row
    ELEMENTS,  # elements of a row, for KIND_CONVERT
    SOURCE_TYPE,  # index in SOURCE_TYPES
    OUT_TYPE,  # index in OUT_TYPES
    FIRST,  # first step wanted, relative to the window's start
    WIDTH,  # rows of the output
    PAD_LEFT,  # 1: valid rows stand at the end; 0: each stands at its own step's place
    FILL,  # address of WIDTH padding rows; 0 for zero bytes
    VALID,  # address of WIDTH valid rows, for KIND_CONSTANT
    AFFINE,  # address of float64 mean[ELEMENTS] and scale[ELEMENTS]
    PLAN_FIELDS,
) = range(14)

SOURCE_TYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64",
    "float16",
)  # fmt: skip
OUT_TYPES = ("float32", "float64")


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _half(bits):  # type: ignore[no-untyped-def]
    """The value of a float16, which Numba does not compute with on CPUs, as float64."""
    exponent, fraction = (bits >> 10) & 31, np.float64(bits & 1023)
    if exponent == 31:
        value = np.inf if fraction == 0 else np.nan
    elif exponent == 0:
        value = fraction * 2.0**-24
    else:
        value = (1024.0 + fraction) * np.float64(1 << exponent) * 2.0**-25
    return -value if bits >> 15 else value


def _converter(source: str, out: str) -> Any:
    source_type, out_type = np.dtype("uint16" if source == "float16" else source).type, np.dtype(out).type
    value = _half if source == "float16" else np.float64

    @njit(nogil=True)  # type: ignore[untyped-decorator]
    def convert(source_address, out_address, rows, elements, affine_address):  # type: ignore[no-untyped-def]
        values = carray(pointer(source_address), (rows, elements), source_type)
        result = carray(pointer(out_address), (rows, elements), out_type)
        affine = carray(pointer(affine_address), (2, elements), np.float64)
        for row in range(rows):
            for i in range(elements):
                result[row, i] = out_type((value(values[row, i]) - affine[0, i]) * affine[1, i])

    return convert


def _dispatcher(out: str) -> Any:
    """The converter to `out` from the type that an index in SOURCE_TYPES names; Numba cannot index functions."""
    u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, f16 = (_converter(name, out) for name in SOURCE_TYPES)

    @njit(nogil=True)  # type: ignore[untyped-decorator]
    def convert(kind, source, target, rows, elements, affine):  # type: ignore[no-untyped-def]
        if kind == 8:
            f32(source, target, rows, elements, affine)
        elif kind == 9:
            f64(source, target, rows, elements, affine)
        elif kind == 0:
            u8(source, target, rows, elements, affine)
        elif kind == 1:
            u16(source, target, rows, elements, affine)
        elif kind == 2:
            u32(source, target, rows, elements, affine)
        elif kind == 3:
            u64(source, target, rows, elements, affine)
        elif kind == 4:
            i8(source, target, rows, elements, affine)
        elif kind == 5:
            i16(source, target, rows, elements, affine)
        elif kind == 6:
            i32(source, target, rows, elements, affine)
        elif kind == 10:
            f16(source, target, rows, elements, affine)
        else:
            i64(source, target, rows, elements, affine)

    return convert


_convert_float32, _convert_float64 = (_dispatcher(name) for name in OUT_TYPES)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _fill(out, rows, row_bytes, template):  # type: ignore[no-untyped-def]
    if rows > 0:
        if template == 0:
            memset(out, np.int32(0), np.uint64(rows * row_bytes))
        else:
            memcpy(out, template, np.uint64(rows * row_bytes))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def collect(episode, start, shards, bases, lengths, addresses, plan, outputs):  # type: ignore[no-untyped-def]
    """Fills every output of a batch and returns the bytes of its valid rows.

    Args:
        episode, start: int64 [B]: each window's episode, and its first step there.
        shards, bases, lengths: int64 [episodes]: each episode's shard, the row there of its first step, its steps.
        addresses: int64 [shards, columns], of each column's first byte. Every window's shard must be mapped.
        plan: int64 [outputs, PLAN_FIELDS].
        outputs: int64 [outputs], addresses of arrays [B, WIDTH, OUT_BYTES].

    The caller answers for the addresses; nothing is checked here.
    """
    # Once a window, not once a window and output: a large episode table is not in the cache.
    shard, base, total = shards[episode], bases[episode], lengths[episode]
    valid_bytes = np.int64(0)
    for k in range(len(plan)):
        kind, width, out_bytes = plan[k, KIND], plan[k, WIDTH], plan[k, OUT_BYTES]
        source_bytes, fill = plan[k, SOURCE_BYTES], plan[k, FILL]
        reads_column = kind in (KIND_COPY, KIND_CONVERT)
        # Windows lie anywhere: without asking ahead every one of them begins with a wait for memory. Long rows are
        # left to the processor's own prefetching after their first kilobyte.
        lines = min((width * source_bytes + 63) // 64, 16)
        for b in range(len(episode)):
            ahead = b + 4
            if reads_column and ahead < len(episode):
                line = addresses[shard[ahead], plan[k, COLUMN]] + (base[ahead] + start[ahead]) * source_bytes
                for i in range(lines):
                    prefetch(line + 64 * i)
            first = start[b] + plan[k, FIRST]
            low = max(first, np.int64(0))
            high = min(first + width, total[b])
            rows = max(high - low, np.int64(0))
            if rows == 0:
                head = width
            elif plan[k, PAD_LEFT]:
                head = width - rows
            else:
                head = low - first
            out = outputs[k] + b * width * out_bytes
            _fill(out, head, out_bytes, fill)
            target = out + head * out_bytes
            if rows > 0:
                valid_bytes += rows * out_bytes
                if kind == KIND_COPY:
                    source = addresses[shard[b], plan[k, COLUMN]] + (base[b] + low) * source_bytes
                    memcpy(target, source, np.uint64(rows * out_bytes))
                elif kind == KIND_CONVERT:
                    source = addresses[shard[b], plan[k, COLUMN]] + (base[b] + low) * source_bytes
                    elements, affine, code = plan[k, ELEMENTS], plan[k, AFFINE], plan[k, SOURCE_TYPE]
                    if plan[k, OUT_TYPE] == 0:
                        _convert_float32(code, source, target, rows, elements, affine)
                    else:
                        _convert_float64(code, source, target, rows, elements, affine)
                elif kind == KIND_TIMESTEP:
                    steps = carray(pointer(target), (rows,), np.int64)
                    for i in range(rows):
                        steps[i] = low + i
                else:
                    memcpy(target, plan[k, VALID], np.uint64(rows * out_bytes))
            _fill(target + rows * out_bytes, width - head - rows, out_bytes, fill)
    return valid_bytes
