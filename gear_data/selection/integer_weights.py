"""Integer weights, whose sums are exact in any order.

With them, the drawn windows are the same for every machine, and for every division of the episodes into parts.

A positive weight w becomes the integer q = max(1, rint(w u)), for each of the episode's c anchors (c = 1 if a draw
selects an episode). The scale u is a power of two such that the total Q, the sum of c q, is at least 2^60 and below
2^62.

Error bound: write q = w u + d. Rounding gives |d| <= 1/2, and raising to 1 gives |d| < 1. With W = sum c w and
D = sum c d = Q - u W, the error of an episode's probability is

    c q / Q - c w / W = (c d - (c w / W) D) / Q,

so the total variation, half the sum of the absolute errors, is at most (sum c |d| + |D|) / 2Q <= sum c |d| / Q. This is
less than N / Q <= N / 2^60, where N is the number of anchors (or episodes) of positive weight: 10^-10 for 10^8.

Why: docs/explanation/decisions/integer-weights.md
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
from gear_data.kernels import cpu
from gear_data.selection.windows import Float64Array, Int64Array

#: The total Q is at least 2^60 and below 2^62.
MIN_TOTAL_BITS = 60

#: Applies a function to items, in any order or in parallel: the built-in `map`, or a thread pool's.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class WeightScale:
    """The scale by which weights become integers.

    Attributes:
        exponent: the scale u is 2^exponent.
        sums: total integer weight of each part.
        raised: number of episodes whose weight would round to 0 and was raised to 1 (for each anchor).
        positive: number of episodes with a positive integer weight.
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
    """Returns the scale for the weights of k episodes.

    Args:
        weights: float64 [k], finite, not negative.
        prefix: int64 [k + 1], anchors before each episode; an episode without anchors has the integer weight 0.
        by_anchor: True: a weight applies to each anchor of an episode; False: to the episode.
        parts: consecutive slices of 0..k-1 that are processed separately; None: one part. The scale does not depend on
            the parts.
        run: applies a function to the parts. The kernels release the GIL, so a thread pool's `map` uses all threads.

    Raises:
        InvalidArgumentError: no episode with an anchor has a positive weight.
    """
    slices = _whole(weights) if parts is None else list(parts)

    def bounds(part: slice) -> tuple[float, int, int]:
        return cpu.integer_weights.bounds(weights, prefix, by_anchor, part.start, part.stop)  # type: ignore[no-any-return]

    part_bounds = list(run(bounds, slices))
    largest = max(top for top, _, _ in part_bounds)
    count = sum(units for _, units, _ in part_bounds)
    part_sums: list[tuple[int, int]] = []

    def total_at(exponent: int) -> int:
        low, high = scale_factors(exponent)

        def sums(part: slice) -> tuple[int, int]:
            return cpu.integer_weights.sums(weights, prefix, by_anchor, low, high, part.start, part.stop)  # type: ignore[no-any-return]

        part_sums[:] = run(sums, slices)
        return sum(total for total, _ in part_sums)

    exponent = fit_exponent(largest, count, total_at)
    raised, positive = sum(count for _, count in part_sums), sum(episodes for _, _, episodes in part_bounds)
    return WeightScale(exponent, tuple(total for total, _ in part_sums), raised, positive)


def fit_exponent(largest: float, count: int, total_at: Callable[[int], int]) -> int:
    """Returns the exponent of a scale. The last call of `total_at` has this exponent.

    Args:
        largest: the largest weight.
        count: anchors (or episodes) of positive weight.
        total_at: total_at(exponent) -> the total integer weight with that exponent.

    Raises:
        InvalidArgumentError: no weight is positive.
    """
    if largest <= 0:
        raise InvalidArgumentError(
            "no weight is positive", hint="give a positive weight to an episode that a window can be drawn from"
        )
    # With this exponent every q is at most 2^60 / 2^bits(count), so the sum of all q is at most 2^60.
    exponent = MIN_TOTAL_BITS - count.bit_length() - math.frexp(largest)[1]
    while (total := total_at(exponent)) < 1 << MIN_TOTAL_BITS:
        # A scale 2^g times as large makes each q at most 3/2 * 2^g times as large: the sum stays below 3/2 * 2^61.
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
    """Returns the integer weight before each episode, int64 [k + 1].

    Args:
        scale: the result of `int_weight_scale` for the same weights and parts.
        weights, prefix, by_anchor, parts, run: see `int_weight_scale`.
    """
    out = np.zeros(len(weights) + 1, np.int64)
    low, high = scale_factors(scale.exponent)

    def fill(item: tuple[slice, int]) -> None:
        part, base = item
        cpu.integer_weights.fill_prefix(weights, prefix, by_anchor, low, high, part.start, part.stop, base, out)

    slices = _whole(weights) if parts is None else list(parts)
    bases = [0, *accumulate(scale.sums[:-1])]
    list(run(fill, list(zip(slices, bases, strict=True))))
    return out


def _whole(weights: Float64Array) -> list[slice]:
    return [slice(0, len(weights))]


def scale_factors(exponent: int) -> tuple[float, float]:
    """Returns two powers of two whose product is 2^exponent.

    2^exponent itself may overflow.

    Multiplying by both is exact unless the result is far below 1/2, and such a result rounds to 0 anyway.
    """
    half = exponent // 2
    return math.ldexp(1.0, half), math.ldexp(1.0, exponent - half)


def check_weights(weights: npt.NDArray[np.float64], name: str, ids: Int64Array | None) -> None:
    """Checks that weights are finite and not negative.

    Args:
        weights: float64 [k].
        name: the name of a weight in the message.
        ids: int64 [k], the episodes' ids; None: 0 to k - 1.

    Raises:
        InvalidArgumentError: a weight is NaN, infinite or negative; the message names the first such episode.
    """
    row = cpu.integer_weights.first_wrong(weights)
    if row >= 0:
        raise InvalidArgumentError(
            f"the {name} of episode {row if ids is None else ids[row]} is {weights[row]}",
            row=row,
            hint="weights must be finite and not negative; fill nulls or clip values in the expression",
        )
