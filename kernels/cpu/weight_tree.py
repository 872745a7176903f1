"""A 16-ary tree of integer sums over episodes.

A draw or an update accesses only a few nodes of each level.

Node i of a level is the sum of nodes 16 i to 16 i + 15 of the level below. Level 0 holds the episodes' integer weights;
the last level is one node. All levels are in one array. Each level begins at a multiple of 16 and is padded with zeros
to a multiple of 16, because 16 nodes are two cache lines. The idea is Fenwick's (1994) partial sums, with wider nodes
for fewer cache misses.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types

from gear_data.kernels.cpu.integer_weights import int_weight
from gear_data.kernels.cpu.native import address_of, cached_njit, int64s, pointer, prefetch

ARITY_BITS = 4
ARITY = 1 << ARITY_BITS
#: The kernel prefetches the memory of the update this many updates ahead.
_AHEAD = 24
#: The largest integer weight of an episode.
_MAX_WEIGHT = (1 << 63) - 1
#: The scale stays while the total is in this range. A new scale gives a total of 2^60 to 2^62.
_MIN_TOTAL, _MAX_TOTAL = 1 << 52, (1 << 63) - (1 << 40)
#: Results of `put`.
IN_RANGE, OUT_OF_RANGE, REFUSED = range(3)

#: What `put` needs of a tree, in one record: to unpack arrays would take longer than a small update.
TREE = np.dtype(
    [
        ("weights", np.int64),  # address of float64 [k]
        ("prefix", np.int64),  # address of int64 [k + 1], anchors before each episode
        ("episodes", np.int64),  # k
        ("by_anchor", np.int64),  # whether a weight applies to each anchor of an episode
        ("starts", np.int64),  # address of int64 [levels], the first node of each level
        ("levels", np.int64),  # number of levels
        ("nodes", np.int64),  # address of the nodes
        ("low", np.float64),  # the factors of the scale, see `gear_data.selection.integer_weights.scale_factors`
        ("high", np.float64),
        ("squares", np.float64),  # sum of the squares of the integer weights
        ("positive", np.int64),  # number of positive integer weights
    ]
)


@cached_njit
def build(starts, nodes):  # type: ignore[no-untyped-def]
    """Fills the levels above level 0."""
    for level in range(1, len(starts)):
        below, above = starts[level - 1], starts[level]
        for i in range((above - below) >> ARITY_BITS):
            total = 0
            for j in range(ARITY):
                total += nodes[below + (i << ARITY_BITS) + j]
            nodes[above + i] = total


@cached_njit
def fill_leaves(weights, prefix, by_anchor, low, high, nodes):  # type: ignore[no-untyped-def]
    """Fills level 0 from weights, at the scale low * high."""
    for i in range(len(weights)):
        anchors = prefix[i + 1] - prefix[i]
        units = anchors if by_anchor else 1
        nodes[i] = int_weight(weights[i], low, high) * units if anchors and weights[i] > 0 else 0


@cached_njit
def squares(nodes, count):  # type: ignore[no-untyped-def]
    """Returns (sum of squares, as float64; number of positive nodes) of level 0.

    Args:
        nodes: int64, the tree.
        count: number of episodes: nodes 0 to count - 1 of level 0.
    """
    total, positive = 0.0, 0
    for i in range(count):
        total += float(nodes[i]) * float(nodes[i])
        positive += nodes[i] > 0
    return total, positive


@cached_njit
def put(address, rows, values, before):  # type: ignore[no-untyped-def]
    """Sets the weights of some episodes, and updates the tree with its sums of squares and positive weights.

    An integer weight is at most 2^63 - 1. The caller rebuilds a tree whose total left its range.

    Args:
        address: address of a TREE, whose last two fields, weights and nodes are changed in place.
        rows: int64 [m], indices of episodes; if an index occurs twice, its last value counts.
        values: float64 [m], the new weights.
        before: float64 [m], receives the replaced weights.

    Returns:
        IN_RANGE; OUT_OF_RANGE: the total left its range; or REFUSED: there is no such episode, or a weight is NaN,
        infinite or negative, and nothing is changed.
    """
    tree = carray(pointer(address), (1,), TREE)[0]
    for i in range(len(rows)):
        if not (0 <= rows[i] < tree.episodes and 0 <= values[i] < np.inf):
            return REFUSED
    weights = carray(pointer(tree.weights), (tree.episodes,), np.float64)
    prefix, starts = int64s(tree.prefix, tree.episodes + 1), int64s(tree.starts, tree.levels)
    nodes, low, high = int64s(tree.nodes, 1 << 40), tree.low, tree.high
    deltas = np.empty(len(rows), np.int64)
    root = starts[len(starts) - 1]
    before_total, total, square, positive = np.float64(nodes[root]), 0.0, 0.0, np.int64(0)
    for ahead in range(len(rows) + _AHEAD):
        # The loop prefetches _AHEAD updates ahead, not all at once: the processor handles few cache misses at a time.
        if ahead < len(rows):
            prefetch(tree.weights + 8 * rows[ahead])
            prefetch(tree.prefix + 8 * rows[ahead])
            prefetch(tree.nodes + 8 * rows[ahead])
        i = ahead - _AHEAD
        if i < 0:
            continue
        row = rows[i]
        anchors = prefix[row + 1] - prefix[row]
        new = np.int64(0)
        if anchors and values[i] > 0:
            units = anchors if tree.by_anchor else 1
            fits = max(1.0, np.rint(values[i] * low * high)) * units < 2.0**63
            new = int_weight(values[i], low, high) * units if fits else np.int64(_MAX_WEIGHT)
        old = nodes[row]
        before[i], weights[row] = weights[row], values[i]
        nodes[row], deltas[i] = new, new - old
        total += np.float64(new) - np.float64(old)
        square += np.float64(new) * np.float64(new) - np.float64(old) * np.float64(old)
        positive += np.int64(new > 0) - np.int64(old > 0)
    for level in range(1, len(starts)):
        for i in range(len(rows)):
            if i + _AHEAD < len(rows):
                prefetch(tree.nodes + 8 * (starts[level] + (rows[i + _AHEAD] >> (level * ARITY_BITS))))
            nodes[starts[level] + (rows[i] >> (level * ARITY_BITS))] += deltas[i]
    tree.squares += square
    tree.positive += positive
    # The sum in float64 cannot overflow. Its error is far smaller than the distance from _MAX_TOTAL to 2^63.
    return IN_RANGE if before_total + total < _MAX_TOTAL and nodes[root] >= _MIN_TOTAL else OUT_OF_RANGE


@njit(nogil=True, cache=True, inline="always")
def _sum_of_four(nodes, first):  # type: ignore[no-untyped-def]
    return nodes[first] + nodes[first + 1] + nodes[first + 2] + nodes[first + 3]


@njit(nogil=True, cache=True, inline="always")
def _place_of(one, two, three, point):  # type: ignore[no-untyped-def]
    """Finds a point among four numbers laid end to end, whose running sums are given, except the last one.

    Returns:
        The place of the number that holds the point, and the sum of the numbers before it.
    """
    first, second, third = np.int64(one <= point), np.int64(two <= point), np.int64(three <= point)
    return first + second + third, (one & -first) + ((two - one) & -second) + ((three - two) & -third)


@cached_njit
def _find(address, first_nodes, levels, windows, count):  # type: ignore[no-untyped-def]
    """Finds the episodes of the points out[1].

    Args:
        address: address of the tree's nodes.
        first_nodes: address of int64 [levels], the first node of each level.
        levels: number of levels.
        windows: address of `out`, int64 [3, B]. out[0] receives the episodes, out[2] the points' offsets in the
            episodes' intervals.
        count: B.
    """
    nodes, starts = int64s(address, 1 << 40), int64s(first_nodes, levels)
    out = carray(pointer(windows), (3, count), np.int64)
    for i in range(count):
        out[0, i], out[2, i] = 0, out[1, i]
    for level in range(len(starts) - 2, -1, -1):
        start = starts[level]
        for i in range(count):
            node, rest = start + (out[0, i] << ARITY_BITS), out[2, i]
            # First the four children, then the child. No branch depends on them: the processor could not predict it.
            one = _sum_of_four(nodes, node)
            two = one + _sum_of_four(nodes, node + 4)
            three = two + _sum_of_four(nodes, node + 8)
            place, before = _place_of(one, two, three, rest)
            node, rest = node + 4 * place, rest - before
            one = nodes[node]
            two = one + nodes[node + 1]
            place, before = _place_of(one, two, two + nodes[node + 2], rest)
            child = node + place - start
            out[0, i], out[2, i] = child, rest - before
            if level:
                below = address + 8 * (starts[level - 1] + (child << ARITY_BITS))
                prefetch(below)
                prefetch(below + 64)


def find() -> int:
    """Returns the address of the kernel that finds the episodes of points in a tree."""
    return address_of(_find, (types.int64,) * 5)
