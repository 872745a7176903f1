"""WeightTree: episodes' quanta that can be changed, drawn from as from a prefix table of the same quanta."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.selection.integer_weights import int_weight_scale, scale_factors
from gear_data.selection.windows import Float64Array, Int64Array

#: The scale stays while the total is in this range; it is 2^60 to 2^62 where a scale was just chosen.
MIN_TOTAL, MAX_TOTAL = 1 << 52, (1 << 63) - (1 << 40)


class WeightTree:
    """Weights of k episodes, and a tree of sums of their quanta (see `gear_data.kernels.cpu.weight_tree`).

    The quanta are a function of the weights and the exponent alone, so a weight that is set back gives the same draws.

    Args:
        weights: float64 [k], finite, not negative; changed in place.
        prefix: int64 [k + 1], anchors before each episode.
        by_anchor: a weight is of each anchor of an episode; else of the episode.
        exponent: quanta are max(1, rint(weight * 2^exponent)), times the anchors if `by_anchor`.

    Attributes:
        positive: how many episodes have quanta.
    """

    def __init__(self, weights: Float64Array, prefix: Int64Array, by_anchor: bool, exponent: int) -> None:
        self.weights = weights
        self._prefix = prefix
        self._by_anchor = by_anchor
        self._starts, size = _level_starts(len(weights))
        self._nodes = _aligned_zeros(size)
        self.rescale(exponent)

    def __reduce__(self) -> tuple[Any, ...]:
        # Memory is aligned anew.
        return (WeightTree, (self.weights, self._prefix, self._by_anchor, self.exponent))

    @property
    def total(self) -> int:
        """How many quanta there are."""
        return int(self._nodes[self._starts[-1]])

    def rescale(self, exponent: int) -> None:
        """Takes another exponent, and computes all quanta anew."""
        from gear_data.kernels.cpu.weight_tree import build, fill_leaves, squares

        self.exponent = exponent
        self._factors = scale_factors(exponent)
        fill_leaves(self.weights, self._prefix, self._by_anchor, *self._factors, self._nodes)
        build(self._starts, self._nodes)
        self._squares, self.positive = squares(self._nodes, len(self.weights))

    def fresh_exponent(self) -> int:
        """The exponent that a new table of these weights has. Raises InvalidArgumentError if none is positive."""
        return int_weight_scale(self.weights, self._prefix, self._by_anchor).exponent

    def put(self, rows: Int64Array, values: Float64Array) -> tuple[Float64Array, bool]:
        """Sets the weights of episodes with these numbers, int64 [m], the last value of one counting.

        Returns:
            The weights there were, float64 [m]: putting them back in reverse order undoes it. And whether the total is
            in its range; if not, nothing may be drawn before `rescale`.
        """
        from gear_data.kernels.cpu.weight_tree import put

        before = np.empty(len(rows), np.float64)
        total = float(self.total)
        change, squares, positive = put(
            self.weights, self._prefix, self._by_anchor, *self._factors, rows, values, self._starts, self._nodes, before
        )
        self._squares += squares
        self.positive += positive
        # The sum of floats is good to far less than what lies between the largest total and 2^63.
        return before, total + change < MAX_TOTAL and self.total >= MIN_TOTAL

    def effective_sample_size(self) -> float:
        """1 / the sum of the squares of the episodes' probabilities."""
        return float(self.total) ** 2 / float(self._squares)

    def shares(self) -> Float64Array:
        """float64 [k], 1 in sum: each episode's part of the quanta."""
        return self._nodes[: len(self.weights)] / self.total

    def plan_fields(self) -> dict[int, int | npt.NDArray[Any]]:
        """See `gear_data.selection.window_sampler.IntWeightTable`."""
        from gear_data.kernels.cpu import windows as kernels

        return {
            kernels.TOTAL: self._nodes[self._starts[-1] :],
            kernels.NODES: self._nodes,
            kernels.STARTS: self._starts,
            kernels.LEVELS: len(self._starts),
        }


def _level_starts(count: int) -> tuple[Int64Array, int]:
    """(first node of each level, nodes in all): every level is filled up to a multiple of the arity, the last to one
    node with as many beside it."""
    from gear_data.kernels.cpu.weight_tree import ARITY

    starts, size, width = [0], 0, count
    while True:
        groups = -(-width // ARITY)
        size += groups * ARITY
        starts.append(size)
        if groups == 1:
            return np.array(starts, np.int64), size + ARITY
        width = groups


def _aligned_zeros(count: int) -> Int64Array:
    """int64 [count], from a cache line on."""
    memory: npt.NDArray[np.int64] = np.zeros(count + 8, np.int64)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + count]
