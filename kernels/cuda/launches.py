"""How the CUDA kernels (`*.cu` beside this file) are launched: arguments, sizes of grids and of memory to work in.

Memory goes by its address on the device; nothing here needs a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gear_data.kernels.output_plan import OutputPlanArray

#: Bytes of an output's window that a warp of `gear_collect` takes at a time, and of a line of memory.
PIECE_BYTES = 8192
LINE_BYTES = 128
#: Episodes that a block sums at a time.
TILE = 4096
_LANES = 32
#: Threads of a block: the most, and few enough that little work is spread over many multiprocessors.
_BLOCK, _SMALL_BLOCK = 512, 128
#: uint64 words of what `largest` works in.
LARGEST_WORDS = 3 + 256


class Launcher(Protocol):
    """Launches kernels of the `.cu` files by name, one after the other."""

    @property
    def blocks(self) -> int:
        """Blocks of up to 512 threads that a launch has at most: fewer leave multiprocessors to others."""

    def launch(self, kernel: str, grid: int, block: int, *arguments: int) -> None:
        """arguments: of 64 bits each."""


def _launch(launcher: Launcher, kernel: str, threads: int, *arguments: int) -> None:
    """A launch for so many threads' work; fewer threads do it too."""
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
    """What a plan of `gear_data.kernels.cpu.collect.collect` points to, final observations left
    out: to be copied to where the
    device can read it, and its address put in the plan."""
    for index, output in enumerate(plan):
        template = output["width"] * output["out_bytes"]
        sizes = {
            "fill": template,
            "valid": template,
            "affine": 2 * 8 * output["affine_rows"] * output["elements"],
            "discounts": 8 * output["horizon"],
        }
        for field, nbytes in sizes.items():
            if output[field]:
                yield PlanBuffer(index, field, int(output[field]), int(nbytes))


def piece_counts(plan: OutputPlanArray) -> npt.NDArray[np.int64]:
    """int64 [outputs + 1]: pieces of a window before each output, as `gear_collect` takes them."""
    # Pieces begin where a line of the source does, so a window may begin up to a line inside its first.
    sizes = plan["width"] * plan["out_bytes"] + LINE_BYTES - 1
    out = np.zeros(len(plan) + 1, np.int64)
    np.cumsum(-(-sizes // PIECE_BYTES), out=out[1:])
    return out


@dataclass(frozen=True)
class EpisodeTables:
    """Addresses of int64 [episodes] each, as `gear_data.kernels.cpu.collect.collect` takes them;
    of `addresses`, int64 [shards,
    columns], which holds the columns' addresses on the device. finals: 0 where no output has final observations."""

    shards: int
    bases: int
    lengths: int
    finals: int
    addresses: int
    columns: int


@dataclass(frozen=True)
class PlanTables:
    """Address of a plan, int64 [outputs, PLAN_FIELDS], and of its `piece_counts`, of which `pieces_per_window` is the
    last."""

    plan: int
    outputs: int
    pieces: int
    pieces_per_window: int


@dataclass(frozen=True)
class WindowRows:
    """Addresses of int64 [count] each."""

    episode: int
    start: int
    length: int
    count: int

    @classmethod
    def drawn(cls, out: int, count: int) -> WindowRows:
        """Of what `draw_windows` filled."""
        return cls(out, out + 8 * count, out + 16 * count, count)


def collect(
    launcher: Launcher,
    tables: EpisodeTables,
    plan: PlanTables,
    windows: WindowRows,
    outputs: int,
    *,
    rows_of: int = 0,
    per: int = 1,
    valid: int = 0,
) -> None:
    """Fills every output of a batch, or of several, in one launch.

    Args:
        outputs: address of int64 [outputs], addresses of arrays [batch rows, WIDTH, OUT_BYTES].
        rows_of: address of int64 [count], the row of the batch each window goes to; 0: window b goes to row b.
        per, valid: address of uint64 [batches], zeros, to which the bytes of valid rows are added, for every `per`
            windows on their own; 0: they are not counted.
    """
    _launch(
        launcher, "gear_collect", windows.count * plan.pieces_per_window * _LANES,
        windows.episode, windows.start, windows.length, rows_of, windows.count,
        tables.shards, tables.bases, tables.lengths, tables.finals, tables.addresses, tables.columns,
        plan.plan, plan.outputs, outputs, plan.pieces, per, valid,
    )  # fmt: skip


# Selection. plan: address of a plan of `gear_data.kernels.cpu.windows`; out: of int64 [rows, count].


def draw_windows(launcher: Launcher, plan: int, step: int, out: int, count: int, rows: int) -> None:
    """The windows of slots 0 to count - 1 of `step`; a fourth row gets their probabilities."""
    _launch(launcher, "gear_draw_windows", count, plan, step, out, count, rows)


def holders_size(count: int) -> int:
    """Entries of the table that `draw_distinct_windows` works in, of two uint64 each."""
    return 1 << max(2, (4 * count - 1).bit_length())


def draw_distinct_windows(
    launcher: Launcher, plan: int, step: int, out: int, count: int, rows: int, table: int
) -> None:
    """The same of a plan that draws no episode twice; `table`: uint64 [2 * holders_size(count)], for working in."""
    _launch(launcher, "gear_draw_episodes", count, plan, step, out, count)
    launcher.launch("gear_make_distinct", 1, _BLOCK, plan, step, out, count, table, holders_size(count))
    _launch(launcher, "gear_finish_windows", count, plan, step, out, count, rows)


def windows_of_points(launcher: Launcher, plan: int, step: int, out: int, count: int) -> None:
    """The windows of the quanta with the numbers in the second row of `out`, int64 [3, count]."""
    _launch(launcher, "gear_windows_of_points", count, plan, step, out, count)


def in_order(launcher: Launcher, first: int, out: int, count: int) -> None:
    """int64 [count]: first, first + 1, ..."""
    _launch(launcher, "gear_in_order", count, first, out, count)


def permuted(launcher: Launcher, seed: int, epoch: int, first: int, size: int, out: int, count: int) -> None:
    """int64 [count]: places first to first + count of an epoch's permutation of 0 to size - 1, from 2^16 numbers on."""
    _launch(launcher, "gear_permuted", count, seed, epoch, first, size, out, count)


def shuffled(launcher: Launcher, seed: int, domain: int, epoch: int, out: int, size: int, work: int) -> None:
    """int64 [size]: an epoch's permutation of fewer numbers, as a whole; `work`: int32 [3 * size], for working in."""
    launcher.launch("gear_shuffled", 1, _BLOCK, seed, domain, epoch, out, size, work)


# Quanta. factors: the two factors of a scale, see `gear_data.selection.integer_weights`. sums:
# int64 [tiles(count) + 1], for
# working in.


@dataclass(frozen=True)
class WeightRows:
    """Addresses of float64 [count] and int64 [count + 1], as `gear_data.selection.integer_weights` takes them."""

    weights: int
    prefix: int
    by_anchor: bool
    count: int


def _bits(factors: tuple[float, float]) -> tuple[int, int]:
    low, high = struct.unpack("<qq", struct.pack("<dd", *factors))
    return low, high


def tiles(count: int) -> int:
    """How many tiles so many episodes are."""
    return -(-count // TILE)


def weight_bounds(launcher: Launcher, rows: WeightRows, out: int) -> None:
    """int64 [3], zeros before: bits of the largest weight (float64), anchors or episodes, episodes."""
    _launch(launcher, "gear_weight_bounds", rows.count, rows.weights, rows.prefix, rows.by_anchor, rows.count, out)


def int_weight_sums(launcher: Launcher, rows: WeightRows, factors: tuple[float, float], out: int) -> None:
    """int64 [2], zeros before: quanta, and episodes raised to one."""
    arguments = rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), rows.count, out
    _launch(launcher, "gear_int_weight_sums", rows.count, *arguments)


def weighted_prefix(launcher: Launcher, rows: WeightRows, factors: tuple[float, float], sums: int, out: int) -> None:
    """int64 [count + 1]: quanta before each episode."""
    arguments = rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), rows.count
    _scan(launcher, "gear_weighted_tiles", "gear_weighted_prefix", rows.count, sums, arguments, out)


def chosen_prefix(
    launcher: Launcher, prefix: int, by_anchor: bool, chosen: int, count: int, sums: int, out: int
) -> None:
    """int64 [count + 1], of one quantum an anchor, or an episode with one, of those chosen (uint8 [count]; 0: all)."""
    arguments = prefix, by_anchor, chosen, count
    _scan(launcher, "gear_chosen_tiles", "gear_chosen_prefix", count, sums, arguments, out)


def _scan(
    launcher: Launcher, summing: str, filling: str, count: int, sums: int, arguments: tuple[int, ...], out: int
) -> None:
    grid = min(tiles(count), launcher.blocks)
    launcher.launch(summing, grid, _BLOCK, *arguments, sums)
    launcher.launch("gear_scan_tiles", 1, _BLOCK, sums, tiles(count))
    launcher.launch(filling, grid, _BLOCK, *arguments, sums, out)


def fill_guide(launcher: Launcher, prefix: int, episodes: int, shift: int, guide: int, size: int) -> None:
    """uint32 [size]: the guide of a `gear_data.selection.prefix_table.PrefixTable`."""
    _launch(launcher, "gear_fill_guide", size, prefix, episodes, shift, guide, size)


def largest(launcher: Launcher, values: int, prefix: int, count: int, state: int, sums: int, chosen: int) -> None:
    """uint8 [count]: 1 for the k largest values (float64 [count]) that are not NaN, of episodes with an anchor; of
    equal ones the first.

    state: uint64 [LARGEST_WORDS], zeros but for k in its second; its third then says how many values there were. If
    they are fewer than k, `chosen` has no meaning.
    """
    for turn in range(8):
        _launch(launcher, "gear_largest_count", count, values, prefix, count, state, turn)
        launcher.launch("gear_largest_pick", 1, 1, state, turn)
    arguments = values, prefix, count, state
    _scan(launcher, "gear_largest_tiles", "gear_largest_mark", count, sums, arguments, chosen)


def fill_tree(
    launcher: Launcher, rows: WeightRows, factors: tuple[float, float], starts: npt.NDArray[np.int64], nodes: int
) -> None:
    """The nodes of a tree (see `gear_data.kernels.cpu.weight_tree`), zeros before, whose levels begin at `starts`."""
    arguments = rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), rows.count, nodes
    _launch(launcher, "gear_fill_leaves", rows.count, *arguments)
    for below, above in pairwise(starts.tolist()):
        groups = (above - below) // 16
        _launch(launcher, "gear_fill_level", groups, nodes + 8 * below, nodes + 8 * above, groups)


@dataclass(frozen=True)
class TreeAt:
    """Addresses of a tree's nodes and of where its levels begin, int64 each, and how many levels it has."""

    nodes: int
    starts: int
    levels: int


#: Weights whose running sums are made anew have no tree.
NO_TREE = TreeAt(0, 0, 0)


@dataclass(frozen=True)
class Update:
    """Addresses of int64 [m], episodes' numbers, and float64 [m], their weights; of what `put` works in: `table`, int64
    [2 * update_size(m)], all -1 before, and `links`, int64 [m]."""

    rows: int
    values: int
    m: int
    table: int
    links: int


def update_size(m: int) -> int:
    """Entries of the table that an update of m weights works in, of two int64 each."""
    return 1 << max(1, (2 * m - 1).bit_length())


def put(
    launcher: Launcher,
    rows: WeightRows,
    factors: tuple[float, float],
    update: Update,
    tree: TreeAt,
    before: int,
    change: int,
) -> None:
    """Sets weights, the last value of an episode counting, and the nodes of the tree.

    before: float64 [m], the weights there were. change: float64 and int64, zeros before: what the quanta changed by,
    and the number of positive ones.
    """
    size = update_size(update.m)
    _launch(launcher, "gear_put_index", update.m, update.rows, update.m, update.table, size, update.links)
    _launch(
        launcher, "gear_put", update.m, rows.weights, rows.prefix, rows.by_anchor, *_bits(factors), update.rows,
        update.values, update.m, tree.starts, tree.levels, tree.nodes, before, update.table, size, update.links, change,
    )  # fmt: skip
