"""Conversion of rows between dtypes.

An output element is (value - mean) * scale, computed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.native import cached_njit, njit_named, pointer
from gear_data.kernels.output_plan import OUT_TYPES, SOURCE_TYPES

_FLOAT32, _FLOAT64, _FLOAT16, _BFLOAT16 = range(len(OUT_TYPES))
#: Positions in SOURCE_TYPES.
(
    _FROM_UINT8, _FROM_UINT16, _FROM_UINT32, _FROM_UINT64, _FROM_INT8, _FROM_INT16, _FROM_INT32, _FROM_INT64,
    _FROM_FLOAT32, _FROM_FLOAT64, _FROM_FLOAT16,
) = range(len(SOURCE_TYPES))  # fmt: skip


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _float16_value(bits):  # type: ignore[no-untyped-def]
    """Returns the value of a float16 as float64.

    Numba has no float16 arithmetic on CPUs.
    """
    exponent, fraction = (bits >> 10) & 31, np.float64(bits & 1023)
    if exponent == 31:
        value = np.inf if fraction == 0 else np.nan
    elif exponent == 0:
        value = fraction * 2.0**-24
    else:
        value = (1024.0 + fraction) * np.float64(1 << exponent) * 2.0**-25
    return -value if bits >> 15 else value


def _converter(source: str, out: str) -> Any:
    """Returns the converter from one source type to float32 or float64."""
    source_type, out_type = np.dtype("uint16" if source == "float16" else source).type, np.dtype(out).type
    source_bytes, out_bytes = np.dtype(source).itemsize, np.dtype(out).itemsize
    value = _float16_value if source == "float16" else np.float64

    @njit_named(f"convert_{source}_{out}")  # type: ignore[untyped-decorator]
    def convert(source_address, out_address, count, affine_address, period):  # type: ignore[no-untyped-def]
        mean = carray(pointer(affine_address), (period,), np.float64)
        scale = carray(pointer(affine_address + 8 * period), (period,), np.float64)
        # Each round makes views that start at index 0, because LLVM does not vectorise a loop over a sum of indices.
        first = np.int64(0)
        while first < count:
            length = min(period, count - first)
            values = carray(pointer(source_address + first * source_bytes), (length,), source_type)
            result = carray(pointer(out_address + first * out_bytes), (length,), out_type)
            for i in range(length):
                result[i] = out_type((value(values[i]) - mean[i]) * scale[i])
            first += length

    return convert


def _dispatcher(out: str) -> Any:
    """Returns the converter from any source type.

    Numba cannot index functions, so the converter is a chain of ifs.
    """
    u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, f16 = (_converter(name, out) for name in SOURCE_TYPES)

    @njit_named(f"convert_any_{out}")  # type: ignore[untyped-decorator]
    def convert(source_type, source, target, count, affine, period):  # type: ignore[no-untyped-def]
        if source_type == _FROM_FLOAT32:
            f32(source, target, count, affine, period)
        elif source_type == _FROM_FLOAT64:
            f64(source, target, count, affine, period)
        elif source_type == _FROM_UINT8:
            u8(source, target, count, affine, period)
        elif source_type == _FROM_UINT16:
            u16(source, target, count, affine, period)
        elif source_type == _FROM_UINT32:
            u32(source, target, count, affine, period)
        elif source_type == _FROM_UINT64:
            u64(source, target, count, affine, period)
        elif source_type == _FROM_INT8:
            i8(source, target, count, affine, period)
        elif source_type == _FROM_INT16:
            i16(source, target, count, affine, period)
        elif source_type == _FROM_INT32:
            i32(source, target, count, affine, period)
        elif source_type == _FROM_FLOAT16:
            f16(source, target, count, affine, period)
        else:
            i64(source, target, count, affine, period)

    return convert


_to_float32, _to_float64 = _dispatcher("float32"), _dispatcher("float64")


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _float16_bits(bits):  # type: ignore[no-untyped-def]
    """Rounds the bits of a float32 to the nearest float16.

    Ties go to even, as in torch.
    """
    sign, rest = (bits >> np.uint32(16)) & np.uint32(0x8000), bits & np.uint32(0x7FFFFFFF)
    if rest > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)
    elif rest >= np.uint32(0x47800000):
        half = np.uint32(0x7C00)
    elif rest < np.uint32(0x38800000):
        # A subnormal float16 counts in units of 2^-24: the float32's implicit bit is shifted in, the lost bits round.
        shift = np.uint32(126) - (rest >> np.uint32(23))
        if shift > np.uint32(25):
            half = np.uint32(0)
        else:
            whole = (rest & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
            half = whole >> shift
            lost, middle = whole & ((np.uint32(1) << shift) - np.uint32(1)), np.uint32(1) << (shift - np.uint32(1))
            if lost > middle or (lost == middle and half & np.uint32(1)):
                half += np.uint32(1)
    else:
        half = (
            rest - np.uint32(0x38000000) + np.uint32(0xFFF) + ((rest >> np.uint32(13)) & np.uint32(1))
        ) >> np.uint32(13)
    return np.uint16(sign | half)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _bfloat16_bits(bits):  # type: ignore[no-untyped-def]
    """Rounds the bits of a float32 to the nearest bfloat16.

    Ties go to even, as in torch.
    """
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16(0x7FC0)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _round_to_half(out_type, source, target, count):  # type: ignore[no-untyped-def]
    """Rounds float32 values to float16 or bfloat16."""
    bits, result = carray(pointer(source), (count,), np.uint32), carray(pointer(target), (count,), np.uint16)
    if out_type == _BFLOAT16:
        for i in range(count):
            result[i] = _bfloat16_bits(bits[i])
    else:
        for i in range(count):
            result[i] = _float16_bits(bits[i])


@cached_njit
def round_to_bfloat16(values, out):  # type: ignore[no-untyped-def]
    """Rounds float32 values to bfloat16.

    Args:
        values: float32 [N], contiguous.
        out: uint16 [N], receives the bits.
    """
    _round_to_half(_BFLOAT16, values.ctypes.data, out.ctypes.data, len(values))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def convert_rows(output, source, target, rows):  # type: ignore[no-untyped-def]
    """Converts rows of a column to an output of KIND_CONVERT.

    Args:
        output: a record of OUTPUT_PLAN.
        source, target: addresses of the first row, in the column and in the output.
        rows: number of rows.
    """
    elements, affine, out_type = output.elements, output.affine, output.out_type
    # Each mix of integer types, and each constant, would be a conversion of its own to compile.
    source, target = np.int64(source), np.int64(target)
    count, period = np.int64(rows * elements), np.int64(output.affine_rows * elements)
    if out_type == _FLOAT32:
        _to_float32(output.source_type, source, target, count, affine, period)
    elif out_type == _FLOAT64:
        _to_float64(output.source_type, source, target, count, affine, period)
    else:
        # First to float32, then to half precision, in pieces that stay in the cache.
        item = output.source_bytes // elements
        piece = np.empty(period, np.float32)
        for first in range(0, count, period):
            length = min(period, count - first)
            _to_float32(output.source_type, source + first * item, np.int64(piece.ctypes.data), length, affine, period)
            _round_to_half(out_type, np.int64(piece.ctypes.data), target + 2 * first, length)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def sum_discounted_rows(output, source, target, rows, left):  # type: ignore[no-untyped-def]
    """Fills an output of KIND_DISCOUNTED, element by element.

    Args:
        output: a record of OUTPUT_PLAN.
        source, target: addresses of the first row.
        rows: rows of the output.
        left: source rows from `source` to the end of the episode.
    """
    elements, horizon = output.elements, output.horizon
    discounts = carray(pointer(output.discounts), (horizon,), np.float64)
    value, rounded, affine = np.empty(1, np.float64), np.empty(1, np.float32), np.array([0.0, 1.0])
    # Types as in `convert_rows`.
    source, target, one = np.int64(source), np.int64(target), np.int64(1)
    value_address, affine_address = np.int64(value.ctypes.data), np.int64(affine.ctypes.data)
    for row in range(rows):
        for i in range(elements):
            total = 0.0
            for j in range(min(horizon, left - row)):
                place = np.int64(source + (row + j) * output.source_bytes + i * (output.source_bytes // elements))
                _to_float64(output.source_type, place, value_address, one, affine_address, one)
                total += discounts[j] * value[0]
            place = np.int64(target + (row * elements + i) * (output.out_bytes // elements))
            if output.out_type == _FLOAT64:
                carray(pointer(place), (1,), np.float64)[0] = total
            else:
                rounded[0] = np.float32(total)
                if output.out_type == _FLOAT32:
                    carray(pointer(place), (1,), np.float32)[0] = rounded[0]
                else:
                    _round_to_half(output.out_type, np.int64(rounded.ctypes.data), place, one)
