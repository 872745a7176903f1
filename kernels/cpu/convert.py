"""Conversion of rows between dtypes.

An output element is (value - mean) * scale, computed in float64.

A plan has the address of the kernel that writes an output's rows. So only kernels for types that occur are compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, from_dtype, njit, types

from gear_data.kernels.cpu.native import address_of, cached_njit, element, pointer
from gear_data.kernels.output_plan import KIND_CONVERT, KIND_DISCOUNTED, OUT_TYPES, OUTPUT_PLAN, SOURCE_TYPES

_FLOAT32, _FLOAT64, _FLOAT16, _BFLOAT16 = range(len(OUT_TYPES))
_FROM_FLOAT16 = SOURCE_TYPES.index("float16")


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
def _number(source_type, value):  # type: ignore[no-untyped-def]
    return _float16_value(np.uint16(value)) if source_type == _FROM_FLOAT16 else np.float64(value)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _scale(values, mean, scale, result):  # type: ignore[no-untyped-def]
    # All arrays start at index 0, because LLVM does not vectorise a loop over a sum of indices.
    for i in range(len(result)):
        result[i] = (np.float64(values[i]) - mean[i]) * scale[i]


@cached_njit
def _convert(output, source, target, rows, left):  # type: ignore[no-untyped-def]
    """Converts numbers to float32 or float64: see `writer_of`."""
    plan = carray(pointer(output), (1,), OUTPUT_PLAN)[0]
    count, period = rows * plan.elements, plan.affine_rows * plan.elements
    mean = carray(pointer(plan.affine), (period,), np.float64)
    scale = carray(pointer(plan.affine + 8 * period), (period,), np.float64)
    for first in range(0, count, period):
        length = min(period, count - first)
        values, result = carray(element(source, first), (length,)), carray(element(target, first), (length,))
        _scale(values, mean, scale, result)


@cached_njit
def _convert_half(output, source, target, rows, left):  # type: ignore[no-untyped-def]
    """Converts float16, or to half precision, in pieces that stay in the cache: see `writer_of`."""
    plan = carray(pointer(output), (1,), OUTPUT_PLAN)[0]
    count, period, out_type = rows * plan.elements, plan.affine_rows * plan.elements, plan.out_type
    mean = carray(pointer(plan.affine), (period,), np.float64)
    scale = carray(pointer(plan.affine + 8 * period), (period,), np.float64)
    values, numbers, rounded = carray(source, (count,)), np.empty(period, np.float64), np.empty(period, np.float32)
    for first in range(0, count, period):
        length = min(period, count - first)
        for i in range(length):
            numbers[i] = _number(plan.source_type, values[first + i])
        if out_type == _FLOAT64:
            _scale(numbers, mean, scale, carray(pointer(target + 8 * first), (length,), np.float64))
        elif out_type == _FLOAT32:
            _scale(numbers, mean, scale, carray(pointer(target + 4 * first), (length,), np.float32))
        else:
            _scale(numbers, mean, scale, rounded[:length])
            _round_to_half(out_type, np.int64(rounded.ctypes.data), target + 2 * first, length)


@cached_njit
def _sum_discounted(output, source, target, rows, left):  # type: ignore[no-untyped-def]
    """Sums numbers with discounts, element by element: see `writer_of`."""
    plan = carray(pointer(output), (1,), OUTPUT_PLAN)[0]
    elements, out_type = plan.elements, plan.out_type
    discounts = carray(pointer(plan.discounts), (plan.horizon,), np.float64)
    values, rounded = carray(source, (left * elements,)), np.empty(1, np.float32)
    for row in range(rows):
        for i in range(elements):
            total = 0.0
            for j in range(min(plan.horizon, left - row)):
                total += discounts[j] * _number(plan.source_type, values[(row + j) * elements + i])
            place = target + (row * elements + i) * (plan.out_bytes // elements)
            if out_type == _FLOAT64:
                carray(pointer(place), (1,), np.float64)[0] = total
            elif out_type == _FLOAT32:
                carray(pointer(place), (1,), np.float32)[0] = total
            else:
                rounded[0] = total
                _round_to_half(out_type, np.int64(rounded.ctypes.data), place, np.int64(1))


def writer_of(output: Any) -> int:
    """Returns the address of the kernel that writes rows of a column to an output; 0: its rows are copied.

    The kernel's arguments are int64: the address of the output's record of OUTPUT_PLAN; the addresses of the first row,
    in the column and in the output; the number of rows; and, for KIND_DISCOUNTED, the source rows from there to the end
    of the episode.

    Args:
        output: a record of OUTPUT_PLAN.
    """
    if output["kind"] not in (KIND_CONVERT, KIND_DISCOUNTED):
        return 0
    source, out = SOURCE_TYPES[output["source_type"]], OUT_TYPES[output["out_type"]]
    kernel, target = _convert_half, types.int64
    if output["kind"] == KIND_DISCOUNTED:
        kernel = _sum_discounted
    elif source != "float16" and out in ("float32", "float64"):
        kernel, target = _convert, _pointer_to(out)
    stored = _pointer_to("uint16" if source == "float16" else source)
    return address_of(kernel, (types.int64, stored, target, types.int64, types.int64))


def _pointer_to(dtype: str) -> Any:
    return types.CPointer(from_dtype(np.dtype(dtype)))
