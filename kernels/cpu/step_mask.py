"""Bitmaps over steps: set, count and find bits.

Rank and select follow Jacobson (1989) with one level: words of 64 bits, and a count before every eighth word.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types, uint64
from numba.extending import intrinsic

from gear_data.kernels.cpu.native import cached_njit

#: Bits and words between two running counts.
BLOCK_BITS = 512
_BLOCK_WORDS = BLOCK_BITS // 64


@intrinsic
def popcount(typing_context, value):  # type: ignore[no-untyped-def]
    """Returns the number of set bits of a uint64."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@njit(nogil=True, cache=True, inline="always")
def bit(words, place):  # type: ignore[no-untyped-def]
    """Returns bit `place`, 0 or 1, as uint64."""
    return (words[place >> 6] >> uint64(place & 63)) & uint64(1)


@njit(nogil=True, cache=True, inline="always")
def rank(words, ranks, place):  # type: ignore[no-untyped-def]
    """Returns the number of set bits before `place`.

    `place` may be the number of bits.
    """
    block = place // BLOCK_BITS
    count = ranks[block]
    for word in range(block * _BLOCK_WORDS, place >> 6):
        count += np.int64(popcount(words[word]))
    if place & 63:
        count += np.int64(popcount(words[place >> 6] << uint64(64 - (place & 63))))
    return count


@njit(nogil=True, cache=True, inline="always")
def select(words, ranks, first, last, number):  # type: ignore[no-untyped-def]
    """Returns the place of set bit `number` of the whole bitmap.

    The caller knows that it lies in [first, last).
    """
    low, high = first // BLOCK_BITS, (last - 1) // BLOCK_BITS
    while low < high:
        middle = (low + high + 1) >> 1
        if ranks[middle] <= number:
            low = middle
        else:
            high = middle - 1
    left = number - ranks[low]
    word = low * _BLOCK_WORDS
    while True:
        count = np.int64(popcount(words[word]))
        if left < count:
            break
        left -= count
        word += 1
    value = words[word]
    for _ in range(left):
        value &= value - uint64(1)
    return (word << 6) + np.int64(popcount((value & (uint64(0) - value)) - uint64(1)))


@cached_njit
def set_flags(words, first, flags):  # type: ignore[no-untyped-def]
    """Sets bit first + i if flags[i], uint8, is not 0."""
    for i in range(len(flags)):
        if flags[i]:
            place = first + i
            words[place >> 6] |= uint64(1) << uint64(place & 63)


@cached_njit
def running_counts(words, ranks):  # type: ignore[no-untyped-def]
    """Sets ranks[b] = the number of set bits before block b.

    The last entry counts all set bits.
    """
    total = np.int64(0)
    for block in range(len(ranks)):
        ranks[block] = total
        for word in range(block * _BLOCK_WORDS, min((block + 1) * _BLOCK_WORDS, len(words))):
            total += np.int64(popcount(words[word]))


@cached_njit
def counts_between(words, ranks, first, lengths, out):  # type: ignore[no-untyped-def]
    """Sets out[i] = the number of set bits from first[i] on, among lengths[i] bits."""
    for i in range(len(lengths)):
        out[i] = rank(words, ranks, first[i] + lengths[i]) - rank(words, ranks, first[i])


@cached_njit
def keep_grid(words, first, lengths, origin, stride, counts, out):  # type: ignore[no-untyped-def]
    """Copies to `out` only the bits that lie on the grid of their episode's anchors.

    The grid of episode i is first[i] + origin + j * stride, for j below counts[i].
    """
    for i in range(len(lengths)):
        for j in range(counts[i]):
            place = first[i] + origin + j * stride
            out[place >> 6] |= words[place >> 6] & (uint64(1) << uint64(place & 63))


@cached_njit
def first_step_holds(words, offsets, context, out):  # type: ignore[no-untyped-def]
    """Sets the bit of each step whose window begins with a set bit.

    The window is the `context` steps that end with the step; fewer near the beginning of an episode.
    """
    for e in range(len(offsets) - 1):
        for place in range(offsets[e], offsets[e + 1]):
            if bit(words, max(offsets[e], place + 1 - context)):
                out[place >> 6] |= uint64(1) << uint64(place & 63)


@cached_njit
def every_step_holds(words, offsets, context, backwards, out):  # type: ignore[no-untyped-def]
    """Sets the bit of each step whose window has only set bits.

    The window is the `context` steps from the step on (backwards: that end with the step), cut to the episode.
    """
    for e in range(len(offsets) - 1):
        first, last = offsets[e], offsets[e + 1]
        run = context
        for i in range(last - first):
            place = first + i if backwards else last - 1 - i
            # Steps outside the episode count as set, so the run starts with its full length.
            run = min(run + 1, context) if bit(words, place) else 0
            if run == context:
                out[place >> 6] |= uint64(1) << uint64(place & 63)
