"""Weights as integers: sums that are exact in any order, so that every split and every machine draws the same.

n positive weights w of episodes with c anchors each (c = 1 where a draw gives an episode) become q = max(1, rint(w u))
quanta an anchor, u a power of two such that Q, the sum of c q, is from 2^60 to below 2^62.

How far that is from the weights: write q = w u + d. Rounding gives |d| <= 1/2, and raising to one quantum |d| < 1. With
W = sum c w and D = sum c d = Q - u W, an episode's probability is off by

    c q / Q - c w / W = (c d - (c w / W) D) / Q,

so the total variation, half the sum of their absolute values, is at most (sum c |d| + |D|) / 2Q <= sum c |d| / Q. That
is less than N / Q <= N / 2^60, N the number of anchors (or episodes) of positive weight: 10^-10 for 10^8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.selection.windows import Float64Array, Int64Array

#: Q is from 2^60 to below 2^62.
MIN_TOTAL_BITS = 60

#: Applies a function to items, in any order or at once: `map`, or a thread pool's.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class WeightScale:
    """How weights become integers.

    Attributes:
        exponent: the scale u is 2^exponent.
        sums: quanta of each part.
        raised: how many episodes would have rounded to nothing and have one quantum (an anchor).
        positive: how many episodes have quanta.
    """

    exponent: int
    sums: tuple[int, ...]
    raised: int
    positive: int


def int_weight_scale(
    weights: Float64Array,
    prefix: Int64Array,
    by_anchor: bool,
    parts: Sequence[slice] | None = None,
    run: Map = map,
) -> WeightScale:
    """The scale for the weights of k episodes.

    Args:
        weights: float64 [k], finite, not negative.
        prefix: int64 [k + 1], anchors before each episode; those without have no quanta.
        by_anchor: a weight is of each anchor of an episode; else of the episode.
        parts: slices of 0..k-1, in order, to be worked on apart; None: one. The scale does not depend on them.
        run: applies a function to the parts; a thread pool's `map` uses its threads, for the kernels hold no lock.

    Raises:
        InvalidArgumentError: no episode with an anchor has a positive weight.
    """
    from gear_data.kernels.cpu import integer_weights as kernels

    slices = _whole(weights) if parts is None else list(parts)

    def bounds(part: slice) -> tuple[float, int, int]:
        return kernels.bounds(weights, prefix, by_anchor, part.start, part.stop)  # type: ignore[no-any-return]

    found = list(run(bounds, slices))
    largest = max(top for top, _, _ in found)
    count = sum(units for _, units, _ in found)
    totals: list[tuple[int, int]] = []

    def total_at(exponent: int) -> int:
        low, high = scale_factors(exponent)

        def sums(part: slice) -> tuple[int, int]:
            return kernels.sums(weights, prefix, by_anchor, low, high, part.start, part.stop)  # type: ignore[no-any-return]

        totals[:] = run(sums, slices)
        return sum(one for one, _ in totals)

    exponent = fit_exponent(largest, count, total_at)
    raised, positive = sum(some for _, some in totals), sum(episodes for _, _, episodes in found)
    return WeightScale(exponent, tuple(one for one, _ in totals), raised, positive)


def fit_exponent(largest: float, count: int, total_at: Callable[[int], int]) -> int:
    """The exponent of a scale, with which `total_at` was called last.

    Args:
        largest: the largest weight.
        count: anchors (or episodes) of positive weight.
        total_at: total_at(exponent) -> quanta of all with that exponent.

    Raises:
        InvalidArgumentError: no weight is positive.
    """
    if largest <= 0:
        raise InvalidArgumentError(
            "no weight is positive", hint="give a positive weight to an episode that a window can be drawn from"
        )
    # Here every q is at most 2^60 / 2^bits of the count, so their sum is at most 2^60.
    exponent = MIN_TOTAL_BITS - count.bit_length() - math.frexp(largest)[1]
    while (total := total_at(exponent)) < 1 << MIN_TOTAL_BITS:
        # A scale 2^g larger makes each q at most 3/2 * 2^g times as large: the sum stays below 3/2 * 2^61.
        exponent += MIN_TOTAL_BITS + 1 - total.bit_length()
    return exponent


def int_weight_prefix(
    weights: Float64Array,
    prefix: Int64Array,
    by_anchor: bool,
    scale: WeightScale,
    parts: Sequence[slice] | None = None,
    run: Map = map,
) -> Int64Array:
    """int64 [k + 1]: quanta before each episode; arguments as for `int_weight_scale`, which made `scale`."""
    from gear_data.kernels.cpu import integer_weights as kernels

    out = np.zeros(len(weights) + 1, np.int64)
    low, high = scale_factors(scale.exponent)

    def fill(item: tuple[slice, int]) -> None:
        part, base = item
        kernels.fill_prefix(weights, prefix, by_anchor, low, high, part.start, part.stop, base, out)

    slices = _whole(weights) if parts is None else list(parts)
    bases = [0, *accumulate(scale.sums[:-1])]
    list(run(fill, list(zip(slices, bases, strict=True))))
    return out


def _whole(weights: Float64Array) -> list[slice]:
    return [slice(0, len(weights))]


def scale_factors(exponent: int) -> tuple[float, float]:
    """Two powers of two whose product is 2^exponent, which alone may overflow. Multiplying by both is exact wherever
    the result is not far below 1/2, which rounds to no quantum at all."""
    half = exponent // 2
    return math.ldexp(1.0, half), math.ldexp(1.0, exponent - half)


def check_weights(weights: npt.NDArray[np.float64], what: str, ids: Int64Array | None) -> None:
    """Raises InvalidArgumentError, with the episode, at the first weight that is NaN, infinite or negative."""
    wrong = ~(weights >= 0) | np.isinf(weights)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidArgumentError(
            f"the {what} of episode {row if ids is None else ids[row]} is {weights[row]}",
            row=row,
            hint="weights are finite and not negative; fill nulls, or clip, in the expression",
        )
