"""Launches of the CUDA kernels: arguments, grid sizes and working memory.

Arguments named after memory are addresses on the device. This module itself needs no GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gear_data.kernels.output_plan import KIND_HOP, OutputPlanArray

#: Bytes of an output's window that a warp of `gear_collect` processes at a time, and bytes of a memory line.
PIECE_BYTES = 8192
LINE_BYTES = 128
#: Episodes that a block sums at a time.
TILE = 4096
_LANES = 32
#: Threads of a block. Small blocks spread little work over more multiprocessors.
_BLOCK, _SMALL_BLOCK = 512, 128
#: uint64 words of the state of `largest`.
LARGEST_WORDS = 3 + 256


class Launcher(Protocol):
    """Launches kernels of the `.cu` files by name, in order."""

    @property
    def blocks(self) -> int:
        """The most blocks of up to 512 threads in a launch.

        Fewer blocks leave multiprocessors to other work.
        """

    def launch(self, kernel: str, grid: int, block: int, *arguments: int) -> None:
        """Launches a kernel; every argument has 64 bits."""


def _launch(launcher: Launcher, kernel: str, threads: int, *arguments: int) -> None:
    """Launches a kernel for the work of `threads` threads.

    Every kernel also works with fewer threads.
    """
    if not threads:
        return
    block = _SMALL_BLOCK if -(-threads // _SMALL_BLOCK) <= launcher.blocks else _BLOCK
    launcher.launch(kernel, min(-(-threads // block), launcher.blocks), block, *arguments)


# Collection


@dataclass(frozen=True)
class PlanBuffer:
    """Memory that a plan points to.

    Attributes:
        output, field: the record and the field of the plan that hold the address.
        address, nbytes: the memory in this process.
    """

    output: int
    field: str
    address: int
    nbytes: int


def plan_buffers(plan: OutputPlanArray) -> Iterator[PlanBuffer]:
    """Yields the memory that a plan points to, except final observations.

    The caller copies it to the device, and puts the new address into a copy of the plan.
    """
    for index, output in enumerate(plan):
        template = output["width"] * output["out_bytes"]
        sizes = {
            "fill": template,
            "valid": 2 * (output["horizon"] + 1) * output["out_bytes"] if output["kind"] == KIND_HOP else template,
            "affine": 2 * 8 * output["affine_rows"] * output["elements"],
            "discounts": 8 * output["horizon"],
        }
        for field, nbytes in sizes.items():
            if output[field]:
                yield PlanBuffer(index, field, int(output[field]), int(nbytes))


def piece_counts(plan: OutputPlanArray) -> npt.NDArray[np.int64]:
    """Returns the pieces of a window before each output, int64 [outputs + 1].

    This is the argument `pieces` of `gear_collect`.
    """
    # A piece begins at a memory line of the source, so a window may begin up to a line inside its first piece.
    sizes = plan["width"] * plan["out_bytes"] + LINE_BYTES - 1
    out = np.zeros(len(plan) + 1, np.int64)
    np.cumsum(-(-sizes // PIECE_BYTES), out=out[1:])
    return out


@dataclass(frozen=True)
class EpisodeTables:
    """Addresses of the episode table's columns.

    The columns are the arguments of `gear_data.kernels.cpu.collect.collect`.

    Attributes:
        shards, bases, lengths, finals: int64 [episodes]. finals is 0 if no output has final observations.
        addresses: int64 [shards, columns], the columns' addresses on the device.
        columns: number of columns.
    """

    shards: int
    bases: int
    lengths: int
    finals: int
    addresses: int
    columns: int


@dataclass(frozen=True)
class PlanTables:
    """Addresses of a plan and of its pieces.

    Attributes:
        plan: OUTPUT_PLAN [outputs], see `gear_data.kernels.output_plan`.
        outputs: number of outputs.
        pieces: int64 [outputs + 1], the result of `piece_counts`.
        pieces_per_window: the last of these numbers.
    """

    plan: int
    outputs: int
    pieces: int
    pieces_per_window: int


@dataclass(frozen=True)
class WindowRows:
    """Addresses of windows, int64 [count] each."""

    episode: int
    start: int
    length: int
    count: int

    @classmethod
    def drawn(cls, out: int, count: int) -> WindowRows:
        """Returns the rows that `draw_windows` filled at address `out`."""
        return cls(out, out + 8 * count, out + 16 * count, count)


def collect(
    launcher: Launcher,
    tables: EpisodeTables,
    plan: PlanTables,
    windows: WindowRows,
    outputs: int,
    *,
    row_of_window: int = 0,
    windows_per_batch: int = 1,
    valid: int = 0,
) -> None:
    """Fills every output of one or more batches in one launch.

    Args:
        launcher: launches the kernel.
        tables, plan, windows: the inputs.
        outputs: int64 [outputs], addresses of arrays [batch rows, width, out_bytes].
        row_of_window: int64 [count], the row that each window fills; 0: window b fills row b.
        windows_per_batch: windows of one batch.
        valid: uint64 [batches], zeros, to which the bytes of valid rows of each batch are added; 0: not counted.
    """
    _launch(
        launcher, "gear_collect", windows.count * plan.pieces_per_window * _LANES,
        windows.episode, windows.start, windows.length, row_of_window, windows.count,
        tables.shards, tables.bases, tables.lengths, tables.finals, tables.addresses, tables.columns,
        plan.plan, plan.outputs, outputs, plan.pieces, windows_per_batch, valid,
    )  # fmt: skip


# Selection. plan: a WINDOW_PLAN, see `gear_data.kernels.window_plan`. out: int64 [rows, count].


def draw_windows(launcher: Launcher, plan: int, step: int, out: int, count: int, rows: int) -> None:
    """Draws the windows of slots 0 to count - 1 of `step`.

    A fourth row receives their probabilities.
    """
    _launch(launcher, "gear_draw_windows", count, plan, step, out, count, rows)


def holders_size(count: int) -> int:
    """Returns the entries of the working table of `draw_distinct_windows`.

    An entry is two uint64.
    """
    return 1 << max(2, (4 * count - 1).bit_length())


def draw_distinct_windows(
    launcher: Launcher, plan: int, step: int, out: int, count: int, rows: int, table: int
) -> None:
    """Draws windows by a plan that draws no episode twice.

    table: uint64 [2 * holders_size(count)], working memory.
    """
    _launch(launcher, "gear_draw_episodes", count, plan, step, out, count)
    launcher.launch("gear_make_distinct", 1, _BLOCK, plan, step, out, count, table, holders_size(count))
    _launch(launcher, "gear_finish_windows", count, plan, step, out, count, rows)


def windows_of_points(launcher: Launcher, plan: int, step: int, out: int, count: int) -> None:
    """Finds the windows of the points in the second row of `out`, int64 [3, count]."""
    _launch(launcher, "gear_windows_of_points", count, plan, step, out, count)


def in_order(launcher: Launcher, first: int, out: int, count: int) -> None:
    """Writes first, first + 1, ... to int64 [count]."""
    _launch(launcher, "gear_in_order", count, first, out, count)


def permuted(launcher: Launcher, seed: int, epoch: int, first: int, size: int, out: int, count: int) -> None:
    """Writes a part of an epoch's permutation of 0 to size - 1.

    The images of the positions first to first + count - 1 go to `out`, int64 [count]. For sizes of 2^16 and more;
    `shuffled` serves smaller sizes.
    """
    _launch(launcher, "gear_permuted", count, seed, epoch, first, size, out, count)


def shuffled(launcher: Launcher, seed: int, domain: int, epoch: int, out: int, size: int, work: int) -> None:
    """Writes an epoch's whole permutation to int64 [size], for sizes below 2^16.

    work: int32 [3 * size].
    """
    launcher.launch("gear_shuffled", 1, _BLOCK, seed, domain, epoch, out, size, work)


# Integer weights. factors: the two factors of a scale, see `gear_data.selection.integer_weights`. sums: int64
# [tiles(count) + 1], working memory.


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
    _launch(launcher, "gear_weight_bounds", rows.count, rows.weights, rows.prefix, rows.by_anchor, rows.count, out)


def int_weight_sums(launcher: Launcher, rows: WeightRows, factors: tuple[float, float], out: int) -> None:
    """Sums integer weights.

    Args:
        launcher, rows, factors: see above.
        out: int64 [2], zeros; receives the total, and the number of episodes whose weight was raised to 1.
    """
    arguments = rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), rows.count, out
    _launch(launcher, "gear_int_weight_sums", rows.count, *arguments)


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
    launcher.launch(sum_kernel, grid, _BLOCK, *arguments, sums)
    launcher.launch("gear_scan_tiles", 1, _BLOCK, sums, tiles(count))
    launcher.launch(scan_kernel, grid, _BLOCK, *arguments, sums, out)


def fill_guide(launcher: Launcher, prefix: int, episodes: int, shift: int, guide: int, size: int) -> None:
    """Writes the guide of a `PrefixTable` to uint32 [size]."""
    _launch(launcher, "gear_fill_guide", size, prefix, episodes, shift, guide, size)


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
        _launch(launcher, "gear_largest_count", count, values, prefix, count, state, digit)
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
    _launch(launcher, "gear_fill_leaves", rows.count, *arguments)
    for below, above in pairwise(starts.tolist()):
        groups = (above - below) // 16
        _launch(launcher, "gear_fill_level", groups, nodes + 8 * below, nodes + 8 * above, groups)


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
    _launch(launcher, "gear_put_index", update.m, update.rows, update.m, update.table, size, update.links)
    _launch(
        launcher, "gear_put", update.m, rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), update.rows,
        update.values, update.m, tree.starts, tree.levels, tree.nodes, before, update.table, size, update.links, change,
    )  # fmt: skip
