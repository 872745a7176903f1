"""WeightTree: integer weights in a tree of sums, so that weights can change."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.kernels import cpu
from gear_data.selection.integer_weights import int_weight_scale, scale_factors
from gear_data.selection.windows import Float64Array, Int64Array


class WeightTree:
    """Weights of k episodes, and a tree of sums of their integer weights.

    The tree is described in `gear_data.kernels.cpu.weight_tree`.

    The same integer weights in a `PrefixTable` draw the same windows. Integer weights depend only on the weights and
    the exponent, so a weight that is set back to an earlier value gives the earlier draws again.

    Args:
        weights: float64 [k], finite, not negative; changed in place.
        prefix: int64 [k + 1], anchors before each episode.
        by_anchor: True: a weight applies to each anchor of an episode; False: to the episode.
        exponent: an integer weight is max(1, rint(weight * 2^exponent)), times the anchors if `by_anchor`.
    """

    def __init__(self, weights: Float64Array, prefix: Int64Array, by_anchor: bool, exponent: int) -> None:
        self.weights = weights
        self._prefix = prefix
        self._by_anchor = by_anchor
        self._starts, size = _level_starts(len(weights))
        self._nodes = _aligned_zeros(size)
        arrays = {"weights": weights, "prefix": prefix, "starts": self._starts, "nodes": self._nodes}
        sizes = {"episodes": len(weights), "by_anchor": by_anchor, "levels": len(self._starts)}
        self._record: npt.NDArray[Any] = np.zeros(1, cpu.weight_tree.TREE)
        for field, value in {**{name: each.ctypes.data for name, each in arrays.items()}, **sizes}.items():
            self._record[field] = value
        self._address = int(self._record.ctypes.data)
        self.rescale(exponent)

    def __reduce__(self) -> tuple[Any, ...]:
        # Memory must be aligned again in the other process.
        return (WeightTree, (self.weights, self._prefix, self._by_anchor, self.exponent))

    @property
    def total(self) -> int:
        """The total integer weight."""
        return int(self._nodes[self._starts[-1]])

    @property
    def positive(self) -> int:
        """The number of episodes with a positive integer weight."""
        return int(self._record["positive"][0])

    def rescale(self, exponent: int) -> None:
        """Computes all integer weights again with another exponent."""
        self.exponent = exponent
        record, factors = self._record, scale_factors(exponent)
        record["low"], record["high"] = factors
        cpu.weight_tree.fill_leaves(self.weights, self._prefix, self._by_anchor, *factors, self._nodes)
        cpu.weight_tree.build(self._starts, self._nodes)
        record["squares"], record["positive"] = cpu.weight_tree.squares(self._nodes, len(self.weights))

    def fresh_exponent(self) -> int:
        """Returns the exponent that a new table of these weights has.

        Raises:
            InvalidArgumentError: no weight is positive.
        """
        return int_weight_scale(self.weights, self._prefix, self._by_anchor).exponent

    def put(self, rows: Int64Array, values: Float64Array) -> tuple[Float64Array, bool]:
        """Sets the weights of the episodes with indices `rows`, int64 [m].

        If an index occurs twice, its last value counts.

        Returns:
            (before, in_range). `before`, float64 [m], holds the replaced weights; setting them again in reverse order
            undoes the change. `in_range` is False if the total left its range; then call `rescale` before the next
            draw.

        Raises:
            ValueError: there is no such episode, or a weight is NaN, infinite or negative. Nothing is changed.
        """
        before = np.empty(len(rows))
        kernels = cpu.weight_tree
        result = kernels.put(self._address, rows, values, before)
        if result == kernels.REFUSED:
            raise ValueError("an index of no episode, or a weight that is NaN, infinite or negative")
        return before, result == kernels.IN_RANGE

    def effective_sample_size(self) -> float:
        """Returns 1 / the sum of the squared probabilities of the episodes."""
        return float(self.total) ** 2 / float(self._record["squares"][0])

    def shares(self) -> Float64Array:
        """Returns each episode's share of the total weight, float64 [k], with a sum of 1."""
        return self._nodes[: len(self.weights)] / self.total

    def plan_fields(self) -> dict[str, int | npt.NDArray[Any]]:
        """See `gear_data.selection.window_sampler.IntWeightTable`."""
        return {
            "total": self._nodes[self._starts[-1] :],
            "nodes": self._nodes,
            "find": cpu.weight_tree.find(),
            "starts": self._starts,
            "levels": len(self._starts),
        }


def _level_starts(count: int) -> tuple[Int64Array, int]:
    """Returns (the first node of each level, the number of nodes).

    Every level is filled up to a multiple of the arity. The last level is one node, filled up likewise.
    """
    arity = cpu.weight_tree.ARITY
    starts, size, width = [0], 0, count
    while True:
        groups = -(-width // arity)
        size += groups * arity
        starts.append(size)
        if groups == 1:
            return np.array(starts, np.int64), size + arity
        width = groups


def _aligned_zeros(count: int) -> Int64Array:
    """Returns zeros, int64 [count], that begin at a cache line."""
    memory: npt.NDArray[np.int64] = np.zeros(count + 8, np.int64)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + count]
