"""Counts of digits of keys, in which `gear_data.storage.quantiles.exact` searches for quantiles."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import cached_njit

#: Bits of a digit.
DIGIT_BITS = 11
_MASK = np.uint64((1 << DIGIT_BITS) - 1)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def count_column(keys, least, most, shift, prefixes, counts):  # type: ignore[no-untyped-def]
    """Counts the digit at bit `shift` of keys, for each prefix that is the bits above the digit.

    Args:
        keys: uint64 [n].
        least, most: uint64, other keys are skipped.
        shift: uint64, the digit's lowest bit.
        prefixes: uint64 [prefixes].
        counts: int64 [prefixes, 2^DIGIT_BITS].
    """
    if len(prefixes) == 1:
        prefix, own = prefixes[0], counts[0]
        for i in range(len(keys)):
            key = keys[i]
            digits = key >> shift
            if digits >> np.uint64(DIGIT_BITS) == prefix and least <= key <= most:
                own[digits & _MASK] += 1
        return
    # Two at a time: a loop over the prefixes of each key takes twice as long.
    for k in range(0, len(prefixes), 2):
        last = min(k + 1, len(prefixes) - 1)
        prefix, other, own, others = prefixes[k], prefixes[last], counts[k], counts[last]
        for i in range(len(keys)):
            key = keys[i]
            digits = key >> shift
            above = digits >> np.uint64(DIGIT_BITS)
            if above == prefix:
                if least <= key <= most:
                    own[digits & _MASK] += 1
            elif above == other and least <= key <= most:
                others[digits & _MASK] += 1


@cached_njit
def count_digits(keys, least, most, shift, prefixes, counts):  # type: ignore[no-untyped-def]
    """Counts the digit at bit `shift` of the keys that begin with a prefix.

    Args:
        keys: uint64 [steps, width, repeat].
        least, most, shift: see `count_column`.
        prefixes: uint64 [width, n], the bits above the digit.
        counts: int64 [width, n, 2^DIGIT_BITS].
    """
    for element in range(keys.shape[1]):
        if keys.shape[2] == 1:
            count_column(keys[:, element, 0], least, most, shift, prefixes[element], counts[element])
        else:
            for step in range(keys.shape[0]):
                count_column(keys[step, element], least, most, shift, prefixes[element], counts[element])
