"""Conversion of weights to integers, for a part of the episodes at a time.

`gear_data.selection.integer_weights` defines the conversion. In all functions: `weights` is float64 [k]; `prefix` is
int64 [k + 1], anchors before each episode; `by_anchor` says whether a weight applies to each anchor of an episode;
low * high is the scale; the part has the episodes `first` to `last` - 1.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import cached_njit


@njit(nogil=True, cache=True, inline="always")
def int_weight(weight, low, high):  # type: ignore[no-untyped-def]
    """Returns max(1, rint(weight * low * high)) of a positive weight, as int64."""
    return max(np.int64(1), np.int64(np.rint(weight * low * high)))


@cached_njit
def first_wrong(weights):  # type: ignore[no-untyped-def]
    """Returns the index of the first weight that is NaN, infinite or negative; -1 if there is none."""
    for i in range(len(weights)):
        if not 0 <= weights[i] < np.inf:
            return i
    return -1


@cached_njit
def first_outside(numbers, count):  # type: ignore[no-untyped-def]
    """Returns the index of the first number that is not 0 to count - 1; -1 if there is none."""
    for i in range(len(numbers)):
        if not 0 <= numbers[i] < count:
            return i
    return -1


@cached_njit
def bounds(weights, prefix, by_anchor, first, last):  # type: ignore[no-untyped-def]
    """Returns (largest weight, units, episodes) of a part.

    Only episodes with an anchor and a positive weight count. The units are their anchors if `by_anchor`, else the
    episodes.
    """
    largest, units, episodes = 0.0, 0, 0
    for i in range(first, last):
        anchors = prefix[i + 1] - prefix[i]
        if anchors and weights[i] > 0:
            largest = max(largest, weights[i])
            units += anchors if by_anchor else 1
            episodes += 1
    return largest, units, episodes


@cached_njit
def sums(weights, prefix, by_anchor, low, high, first, last):  # type: ignore[no-untyped-def]
    """Returns (total integer weight, episodes raised to 1) of a part."""
    total, raised = 0, 0
    for i in range(first, last):
        anchors = prefix[i + 1] - prefix[i]
        if anchors and weights[i] > 0:
            total += int_weight(weights[i], low, high) * (anchors if by_anchor else 1)
            raised += np.rint(weights[i] * low * high) == 0
    return total, raised


@cached_njit
def fill_prefix(weights, prefix, by_anchor, low, high, first, last, base, out):  # type: ignore[no-untyped-def]
    """Sets out[i + 1] = base + the sum of the integer weights of episodes first to i."""
    total = base
    for i in range(first, last):
        anchors = prefix[i + 1] - prefix[i]
        if anchors and weights[i] > 0:
            total += int_weight(weights[i], low, high) * (anchors if by_anchor else 1)
        out[i + 1] = total


@cached_njit
def squares_between(prefix):  # type: ignore[no-untyped-def]
    """Returns the sum of the squared integer weights, as float64.

    prefix: int64 [k + 1], the running sums of the integer weights.
    """
    total = 0.0
    for i in range(len(prefix) - 1):
        weight = np.float64(prefix[i + 1] - prefix[i])
        total += weight * weight
    return total
