"""Launches of `priorities.cu`: integer weights, trees of sums, and the largest values.

factors: the two factors of a scale, see `gear_data.selection.integer_weights`. sums: int64 [tiles(count) + 1], working
memory. Arguments named after memory are addresses on the device.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gear_data.kernels.cuda.launch_arguments import BLOCK, Launcher, launch_threads

#: Episodes that a block sums at a time.
TILE = 4096
#: uint64 words of the state of `largest`.
LARGEST_WORDS = 3 + 256


@dataclass(frozen=True)
class WeightRows:
    """Weights of episodes, as `gear_data.selection.integer_weights` takes them.

    Attributes:
        weights: float64 [count].
        prefix: int64 [count + 1], anchors before each episode.
        by_anchor: whether a weight applies to each anchor.
        count: number of episodes.
    """

    weights: int
    prefix: int
    by_anchor: bool
    count: int


def _bits(factors: tuple[float, float]) -> tuple[int, int]:
    low, high = struct.unpack("<qq", struct.pack("<dd", *factors))
    return low, high


def tiles(count: int) -> int:
    """Returns the number of tiles of `count` episodes."""
    return -(-count // TILE)


def weight_bounds(launcher: Launcher, rows: WeightRows, out: int) -> None:
    """Finds the bounds of the positive weights.

    Args:
        launcher, rows: see above.
        out: int64 [3], zeros; receives the bits of the largest weight (float64), the number of anchors (or episodes),
            and the number of episodes.
    """
    launch_threads(
        launcher, "gear_weight_bounds", rows.count, rows.weights, rows.prefix, rows.by_anchor, rows.count, out
    )


def int_weight_sums(launcher: Launcher, rows: WeightRows, factors: tuple[float, float], out: int) -> None:
    """Sums integer weights.

    Args:
        launcher, rows, factors: see above.
        out: int64 [2], zeros; receives the total, and the number of episodes whose weight was raised to 1.
    """
    arguments = rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), rows.count, out
    launch_threads(launcher, "gear_int_weight_sums", rows.count, *arguments)


def weighted_prefix(launcher: Launcher, rows: WeightRows, factors: tuple[float, float], sums: int, out: int) -> None:
    """Writes the integer weight before each episode to int64 [count + 1]."""
    arguments = rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), rows.count
    _scan(launcher, "gear_weighted_tiles", "gear_weighted_prefix", rows.count, sums, arguments, out)


def chosen_prefix(
    launcher: Launcher, prefix: int, by_anchor: bool, chosen: int, count: int, sums: int, out: int
) -> None:
    """Writes the integer weight before each episode, for weights of 0 and 1.

    Args:
        launcher, sums, out: see above.
        prefix: int64 [count + 1], anchors before each episode.
        by_anchor: True: each anchor has the weight 1; False: each episode with an anchor has.
        chosen: uint8 [count], 0 for episodes that get the weight 0; address 0: all episodes are chosen.
        count: number of episodes.
    """
    arguments = prefix, by_anchor, chosen, count
    _scan(launcher, "gear_chosen_tiles", "gear_chosen_prefix", count, sums, arguments, out)


def _scan(
    launcher: Launcher, sum_kernel: str, scan_kernel: str, count: int, sums: int, arguments: tuple[int, ...], out: int
) -> None:
    grid = min(tiles(count), launcher.blocks)
    launcher.launch(sum_kernel, grid, BLOCK, *arguments, sums)
    launcher.launch("gear_scan_tiles", 1, BLOCK, sums, tiles(count))
    launcher.launch(scan_kernel, grid, BLOCK, *arguments, sums, out)


def fill_guide(launcher: Launcher, prefix: int, episodes: int, shift: int, guide: int, size: int) -> None:
    """Writes the guide of a `PrefixTable` to uint32 [size]."""
    launch_threads(launcher, "gear_fill_guide", size, prefix, episodes, shift, guide, size)


def largest(launcher: Launcher, values: int, prefix: int, count: int, state: int, sums: int, chosen: int) -> None:
    """Marks the k largest values of episodes with an anchor. NaN is never marked.

    Of equal values, the first ones in order are marked.

    Args:
        launcher, sums: see above.
        values: float64 [count].
        prefix: int64 [count + 1], anchors before each episode.
        count: number of episodes.
        state: uint64 [LARGEST_WORDS], zeros, but k in the second word. The third word receives the number of usable
            values; if it is below k, `chosen` is undefined.
        chosen: uint8 [count], receives 1 for the k largest values.
    """
    for digit in range(8):
        launch_threads(launcher, "gear_largest_count", count, values, prefix, count, state, digit)
        launcher.launch("gear_largest_pick", 1, 1, state, digit)
    arguments = values, prefix, count, state
    _scan(launcher, "gear_largest_tiles", "gear_largest_mark", count, sums, arguments, chosen)


def fill_tree(
    launcher: Launcher, rows: WeightRows, factors: tuple[float, float], starts: npt.NDArray[np.int64], nodes: int
) -> None:
    """Fills the nodes of a tree, see `gear_data.kernels.cpu.weight_tree`.

    nodes: zeros; levels begin at `starts`.
    """
    arguments = rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), rows.count, nodes
    launch_threads(launcher, "gear_fill_leaves", rows.count, *arguments)
    for below, above in pairwise(starts.tolist()):
        groups = (above - below) // 16
        launch_threads(launcher, "gear_fill_level", groups, nodes + 8 * below, nodes + 8 * above, groups)


@dataclass(frozen=True)
class TreeAddresses:
    """Addresses of a tree.

    Attributes:
        nodes: int64, the nodes.
        starts: int64 [levels], the first node of each level.
        levels: number of levels.
    """

    nodes: int
    starts: int
    levels: int


#: No tree: the weights are in a prefix table, and the caller computes its running sums again after an update.
NO_TREE = TreeAddresses(0, 0, 0)


@dataclass(frozen=True)
class WeightUpdate:
    """Addresses of an update of m weights.

    Attributes:
        rows: int64 [m], indices of episodes.
        values: float64 [m], their new weights.
        m: number of weights.
        table: int64 [2 * update_size(m)], all -1, working memory.
        links: int64 [m], working memory.
    """

    rows: int
    values: int
    m: int
    table: int
    links: int


def update_size(m: int) -> int:
    """Returns the entries of the working table of an update of m weights.

    An entry is two int64.
    """
    return 1 << max(1, (2 * m - 1).bit_length())


def put(
    launcher: Launcher,
    rows: WeightRows,
    factors: tuple[float, float],
    update: WeightUpdate,
    tree: TreeAddresses,
    before: int,
    change: int,
) -> None:
    """Sets weights and the nodes of the tree.

    If an episode occurs twice, its last value counts.

    Args:
        launcher, rows, factors, update, tree: see above.
        before: float64 [m], receives the replaced weights.
        change: float64 and int64, zeros; receive the changes of the total integer weight and of the number of positive
            integer weights.
    """
    size = update_size(update.m)
    launch_threads(launcher, "gear_put_index", update.m, update.rows, update.m, update.table, size, update.links)
    launch_threads(
        launcher, "gear_put", update.m, rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), update.rows,
        update.values, update.m, tree.starts, tree.levels, tree.nodes, before, update.table, size, update.links, change,
    )  # fmt: skip
