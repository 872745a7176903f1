"""Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011).

The bits are the same on every device.

A draw is a function of (seed, domain, step, slot, attempt). NumPy's own Philox is the 4x64 variant and gives other
bits. Every literal is wrapped in uint64, because Numba turns a uint64 and a Python int into a float64.

Why: docs/explanation/decisions/integer-weights.md
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from gear_data.kernels.cpu.native import cached_njit, prefetch

_MASK32 = uint64(0xFFFFFFFF)
_SHIFT32 = uint64(32)
_M0, _M1 = uint64(0xD2511F53), uint64(0xCD9E8D57)
_W0, _W1 = uint64(0x9E3779B9), uint64(0xBB67AE85)

#: Each use of random numbers has a domain, so that their streams are independent.
DOMAIN_UNIFORM = 1
DOMAIN_SHUFFLE = 2
DOMAIN_FEISTEL = 3
DOMAIN_EPISODE = 4  # an episode, by weight
DOMAIN_ANCHOR = 5  # an anchor of the episode
DOMAIN_PLACE = 6  # the anchor's place in its window
DOMAIN_VALUE_GOAL = 7
DOMAIN_VALUE_GOAL_STEP = 8  # a random step, as a value goal
DOMAIN_ACTOR_GOAL = 9
DOMAIN_ACTOR_GOAL_STEP = 10
DOMAIN_AUGMENT = 11  # the shift of a row's images
DOMAIN_AUGMENT_BATCH = 12  # whether a batch is augmented
DOMAIN_CHOICE = 13  # one of several facts or columns
DOMAIN_PACK = 14  # which windows share a row, and which rows of a step are taken
DOMAIN_AUGMENT_PIXELS = 15  # the numbers by which a row's images are changed
DOMAIN_PATCHES = 16  # the positions of a row's patches of images
DOMAIN_SPLIT = 64
DOMAIN_MIXTURE = 65  # seeds of a mixture's datasets
DOMAIN_NODE = 66  # seeds of nodes that select from their own shards

#: The partners of so many places are drawn together, by instructions that draw several.
_PLACES_AT_ONCE = 256


@njit(nogil=True, cache=True, inline="always")
def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Returns four uint64 below 2^32: ten rounds of Philox.

    The counter (c0..c3) and the key (k0, k1) are uint64 below 2^32.
    """
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT32) ^ c1 ^ k0,
            p1 & _MASK32,
            (p0 >> _SHIFT32) ^ c3 ^ k1,
            p0 & _MASK32,
        )
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    return c0, c1, c2, c3


@njit(nogil=True, cache=True, inline="always")
def word64(seed, domain, step, slot, attempt):  # type: ignore[no-untyped-def]
    """Returns a random uint64.

    The counter is (slot, step low, step high, domain << 24 | attempt), and the key is `seed`.
    """
    c0, c1, _, _ = philox(
        uint64(slot) & _MASK32,
        uint64(step) & _MASK32,
        uint64(step) >> _SHIFT32,
        (uint64(domain) << uint64(24)) | uint64(attempt),
        uint64(seed) & _MASK32,
        uint64(seed) >> _SHIFT32,
    )
    return (c1 << _SHIFT32) | c0


@njit(nogil=True, cache=True, inline="always")
def multiply_high(a, b):  # type: ignore[no-untyped-def]
    """Returns the (high, low) 64 bits of the 128-bit product of two uint64."""
    a0, a1, b0, b1 = a & _MASK32, a >> _SHIFT32, b & _MASK32, b >> _SHIFT32
    low = a0 * b0
    middle = a1 * b0 + (low >> _SHIFT32)
    cross = a0 * b1 + (middle & _MASK32)
    high = a1 * b1 + (middle >> _SHIFT32) + (cross >> _SHIFT32)
    return high, (cross << _SHIFT32) | (low & _MASK32)


@cached_njit
def below(seed, domain, step, slot, bound):  # type: ignore[no-untyped-def]
    """Returns an exactly uniform int below `bound`.

    The method is Lemire's multiply and reject (ACM TOMACS 2019).
    """
    bound = uint64(bound)
    high, low = multiply_high(word64(seed, domain, step, slot, 0), bound)
    if low < bound:
        threshold = (uint64(0) - bound) % bound
        attempt = 1
        while low < threshold:
            high, low = multiply_high(word64(seed, domain, step, slot, attempt), bound)
            attempt += 1
    return np.int64(high)


@cached_njit
def draw_words(seed, domain, step, out):  # type: ignore[no-untyped-def]
    """Sets out[i] = the bits of word64 for slot i of `step`, attempt 0, as int64.

    LLVM vectorises this loop.
    """
    for i in range(len(out)):
        out[i] = np.int64(word64(seed, domain, step, i, 0))


@cached_njit
def draw_below(seed, domain, step, bound, out):  # type: ignore[no-untyped-def]
    """Sets out[i] = below(seed, domain, step, i, bound). out: int64 [B]."""
    draw_words(seed, domain, step, out)
    size = uint64(bound)
    threshold = (uint64(0) - size) % size
    for i in range(len(out)):
        high, low = multiply_high(uint64(out[i]), size)
        out[i] = np.int64(high) if low >= threshold else below(seed, domain, step, i, bound)


@njit(nogil=True, cache=True, inline="always")
def _draw_partners(seed, domain, epoch, first, out):  # type: ignore[no-untyped-def]
    """Sets out[k] = below(seed, domain, epoch, first + k, first + k + 1): the partners of places first + k."""
    for k in range(len(out)):
        out[k] = np.int64(word64(seed, domain, epoch, first + k, 0))
    for k in range(len(out)):
        place = first + k
        high, low = multiply_high(uint64(out[k]), uint64(place + 1))
        out[k] = np.int64(high) if low > uint64(place) else below(seed, domain, epoch, place, place + 1)


@cached_njit
def shuffled(seed, domain, epoch, out):  # type: ignore[no-untyped-def]
    """Fills `out` with a permutation of 0..n-1 (Fisher and Yates)."""
    for i in range(len(out)):
        out[i] = i
    partners = np.empty(_PLACES_AT_ONCE, np.int64)
    end = len(out)
    while end > 0:
        first = max(0, end - _PLACES_AT_ONCE)
        _draw_partners(seed, domain, epoch, first, partners[: end - first])
        for i in range(end - 1, first - 1, -1):
            j = partners[i - first]
            out[i], out[j] = out[j], out[i]
        end = first


@cached_njit
def unshuffle(seed, domain, epoch, values):  # type: ignore[no-untyped-def]
    """Moves the value at place i to place p[i], where p is the permutation of `shuffled`.

    The swaps of `shuffled` are undone, so no permutation is stored.
    """
    partners = np.empty(_PLACES_AT_ONCE, np.int64)
    for first in range(0, len(values), _PLACES_AT_ONCE):
        count = min(_PLACES_AT_ONCE, len(values) - first)
        _draw_partners(seed, domain, epoch, first, partners[:count])
        for k in range(count):
            prefetch(values.ctypes.data + values.itemsize * partners[k])
        for k in range(count):
            i, j = first + k, partners[k]
            values[i], values[j] = values[j], values[i]


@cached_njit
def round_keys(seed, domain, epoch, out):  # type: ignore[no-untyped-def]
    """Fills `out`, uint64, with the keys of a Feistel network, one for each round."""
    for i in range(len(out)):
        out[i] = word64(seed, domain, epoch, i, 0)


@njit(nogil=True, cache=True, inline="always")
def _mix(value, key):  # type: ignore[no-untyped-def]
    """Returns SplitMix64's finalizer of value ^ key (Steele, Lea and Flood, 2014)."""
    z = value ^ key
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@cached_njit
def permuted(first, keys, size, out):  # type: ignore[no-untyped-def]
    """Sets out[i] = the image of first + i under a permutation of 0..size-1.

    The keys determine the permutation. No table of the permutation is stored.

    The permutation is a Feistel network over the smallest power of two that holds `size`, applied until the image is
    below `size` (Black and Rogaway, 2002). With an odd number of bits, the halves differ by one bit and swap widths
    every round.
    """
    bits = uint64(1)
    while (uint64(1) << bits) < uint64(size):
        bits += uint64(1)
    small = bits >> uint64(1)
    large = bits - small
    low, high = (uint64(1) << small) - uint64(1), (uint64(1) << large) - uint64(1)
    # All numbers go through a pair of rounds together, so that the processor works on several at a time. `left` has the
    # `large` upper bits. The numbers that are not below `size` yet come first.
    left, right, places = np.empty(len(out), np.uint64), np.empty(len(out), np.uint64), np.empty(len(out), np.int64)
    for i in range(len(out)):
        value = uint64(first) + uint64(i)
        left[i], right[i], places[i] = value >> small, value & low, i
    walking = len(out)
    while walking:
        for pair in range(0, len(keys), 2):
            one, other = keys[pair], keys[pair + 1]
            for i in range(walking):
                left[i] ^= _mix(right[i], one) & high
                right[i] ^= _mix(left[i], other) & low
        before, walking = walking, 0
        for i in range(before):
            value, place = (left[i] << small) | right[i], places[i]
            if value < uint64(size):
                out[place] = np.int64(value)
            else:
                left[walking], right[walking], places[walking] = value >> small, value & low, place
                walking += 1
