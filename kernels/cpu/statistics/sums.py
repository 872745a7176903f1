"""Exact sums of float64, which do not depend on the order.

A sum is an integer number of 2^-1074, the least float64. It is held as limbs of 32 bits in int64, so that 2^30 numbers
can be added without a carry, and sums are added limb by limb. The idea is Kulisch's long accumulator (Kulisch and
Miranker, 1986).
"""

from __future__ import annotations

import numpy as np
from numba import njit

#: Limbs of a sum.
LIMBS = 68
_LOW = np.uint64(0xFFFFFFFF)
#: 2^27 + 1, which splits a float64 into two halves of 26 bits (Dekker, 1971).
_SPLIT = 134217729.0


@njit(nogil=True)  # type: ignore[untyped-decorator]
def add_exactly(limbs, value, bits):  # type: ignore[no-untyped-def]
    """Adds a finite number to a sum.

    Args:
        limbs: int64 [LIMBS].
        value: float64 [1], the number.
        bits: uint64 [1], a view of `value`.
    """
    exponent = np.int64((bits[0] >> np.uint64(52)) & np.uint64(0x7FF))
    mantissa = bits[0] & np.uint64(0xFFFFFFFFFFFFF)
    if exponent:
        mantissa |= np.uint64(1) << np.uint64(52)
        exponent -= 1
    place, shift = exponent >> 5, np.uint64(exponent & 31)
    low, high = (mantissa & _LOW) << shift, (mantissa >> np.uint64(32)) << shift
    sign = np.int64(-1) if value[0] < 0 else np.int64(1)
    limbs[place] += sign * np.int64(low & _LOW)
    limbs[place + 1] += sign * np.int64((low >> np.uint64(32)) + (high & _LOW))
    limbs[place + 2] += sign * np.int64(high >> np.uint64(32))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def add_rows(rows, count, sums, low, high):  # type: ignore[no-untyped-def]
    """Adds rows to sums of twice the precision of float64, and to the least and the largest values.

    Args:
        rows: float64 [n, width].
        count: the number of rows to add.
        sums: float64 [4, width]: the sum and its error, the sum of squares and its error.
        low, high: float64 [width].
    """
    width = rows.shape[1]
    total, total_error, square, square_error = sums[0], sums[1], sums[2], sums[3]
    for i in range(count):
        row = rows[i]
        for j in range(width):
            x = row[j]
            low[j], high[j] = min(low[j], x), max(high[j], x)
            # The error of a sum is exact (Knuth), and that of a product (Dekker).
            before = total[j]
            after = before + x
            part = after - before
            total_error[j] += (before - (after - part)) + (x - part)
            total[j] = after
            product = x * x
            wide = _SPLIT * x
            head = wide - (wide - x)
            tail = x - head
            error = ((head * head - product) + 2.0 * head * tail) + tail * tail
            before = square[j]
            after = before + product
            part = after - before
            square_error[j] += ((before - (after - part)) + (product - part)) + error
            square[j] = after
