"""Launches of `collect.cu` and `select.cu`: arguments, grid sizes and working memory.

Arguments named after memory are addresses on the device. This module itself needs no GPU. `priority_arguments` launches
the kernels of `priorities.cu`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gear_data.kernels.cuda.tuning import DEFAULT, Tuning
from gear_data.kernels.output_plan import KIND_HOP, OutputPlanArray

#: Bytes of a memory line.
LINE_BYTES = 128
#: The kind of an output on the device whose rows of steps a copy engine copies: COPIED of `collect.cu`.
KIND_COPIED = 6
#: The builds of the collecting kernel for columns in device memory and in pinned memory.
COLLECT, COLLECT_PINNED = "gear_collect", "gear_collect_pinned"
_LANES = 32
#: Threads of a block, and of a small block.
BLOCK, SMALL_BLOCK = 512, 128


class Launcher(Protocol):
    """Launches kernels of the `.cu` files by name, in order.

    Attributes:
        tuning: constants of the collecting kernel.
    """

    tuning: Tuning

    @property
    def blocks(self) -> int:
        """The most blocks of up to 512 threads in a launch.

        Fewer blocks leave multiprocessors to other work.
        """

    def collect_blocks(self, pinned: bool) -> int:
        """Returns the most blocks of a collection from pinned or from device memory."""

    def launch(self, kernel: str, grid: int, block: int, *arguments: int) -> None:
        """Launches a kernel; every argument has 64 bits."""


def launch_threads(launcher: Launcher, kernel: str, threads: int, *arguments: int) -> None:
    """Launches a kernel for the work of `threads` threads.

    Every kernel also works with fewer threads.
    """
    if threads:
        launcher.launch(kernel, *grid(threads, BLOCK, launcher.blocks), *arguments)


def grid(threads: int, block: int, blocks: int) -> tuple[int, int]:
    """Returns (blocks of a launch, threads of a block) for the work of `threads` threads.

    Small blocks spread little work over more multiprocessors.

    Args:
        threads: above 0.
        block: the most threads of a block.
        blocks: the most blocks.
    """
    if -(-threads // SMALL_BLOCK) <= blocks:
        block = min(block, SMALL_BLOCK)
    return min(-(-threads // block), blocks), block


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


def piece_counts(plan: OutputPlanArray, tuning: Tuning = DEFAULT) -> npt.NDArray[np.int64]:
    """Returns the pieces of a window before each output, int64 [outputs + 1].

    This is the argument `pieces` of `gear_collect`. tuning: of the launcher.
    """
    # A piece begins at a memory line of the source, so a window may begin up to a line inside its first piece.
    sizes = plan["width"] * plan["out_bytes"] + LINE_BYTES - 1
    out = np.zeros(len(plan) + 1, np.int64)
    np.cumsum(-(-sizes // tuning.piece), out=out[1:])
    return out


@dataclass(frozen=True)
class EpisodeTables:
    """Addresses of the episode table's columns.

    The columns are the arguments of `gear_data.kernels.cpu.collect.collect`.

    Attributes:
        shards, bases, lengths, finals: int64 [episodes]. finals is 0 if no output has final observations.
        addresses: int64 [shards, columns], the columns' addresses on the device.
        columns: number of columns.
        pinned: whether the columns lie in pinned memory of the machine, so that kernels read them over PCIe.
    """

    shards: int
    bases: int
    lengths: int
    finals: int
    addresses: int
    columns: int
    pinned: bool = False


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
    """Addresses of windows, int64 [count] each.

    Attributes:
        episode, start, length: the windows.
        count: number of windows.
        order: the windows in the order in which a kernel reads them, see `order_windows`; 0: as they are.
    """

    episode: int
    start: int
    length: int
    count: int
    order: int = 0

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
    threads = windows.count * plan.pieces_per_window * _LANES
    if not threads:
        return
    size = grid(threads, launcher.tuning.build(tables.pinned).threads, launcher.collect_blocks(tables.pinned))
    launcher.launch(
        COLLECT_PINNED if tables.pinned else COLLECT, *size,
        windows.episode, windows.start, windows.length, windows.order, row_of_window, windows.count,
        tables.shards, tables.bases, tables.lengths, tables.finals, tables.addresses, tables.columns,
        plan.plan, plan.outputs, outputs, plan.pieces, windows_per_batch, valid,
    )  # fmt: skip


@dataclass(frozen=True)
class EpisodePlaces:
    """Where episodes lie in memory.

    Attributes:
        places: int64 [episodes], the steps before each episode, in the order of addresses.
        total: all steps.
    """

    places: int
    total: int


def order_windows(launcher: Launcher, windows: WindowRows, places: EpisodePlaces, order: int) -> WindowRows:
    """Orders windows by the addresses of their rows. Only the order of reads changes.

    order: int64 [count], working memory.
    """
    arguments = windows.episode, windows.start, windows.count, places.places, places.total, order
    launcher.launch("gear_order_windows", 1, BLOCK, *arguments)
    return replace(windows, order=order)


# Selection. plan: a WINDOW_PLAN, see `gear_data.kernels.window_plan`. out: int64 [rows, count].


def draw_windows(launcher: Launcher, plan: int, step: int, out: int, count: int, rows: int) -> None:
    """Draws the windows of slots 0 to count - 1 of `step`.

    A fourth row receives their probabilities.
    """
    launch_threads(launcher, "gear_draw_windows", count, plan, step, out, count, rows)


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
    launch_threads(launcher, "gear_draw_episodes", count, plan, step, out, count)
    launcher.launch("gear_make_distinct", 1, BLOCK, plan, step, out, count, table, holders_size(count))
    launch_threads(launcher, "gear_finish_windows", count, plan, step, out, count, rows)


def windows_of_points(launcher: Launcher, plan: int, step: int, out: int, count: int) -> None:
    """Finds the windows of the points in the second row of `out`, int64 [3, count]."""
    launch_threads(launcher, "gear_windows_of_points", count, plan, step, out, count)


def in_order(launcher: Launcher, first: int, out: int, count: int) -> None:
    """Writes first, first + 1, ... to int64 [count]."""
    launch_threads(launcher, "gear_in_order", count, first, out, count)


def permuted(launcher: Launcher, seed: int, epoch: int, first: int, size: int, out: int, count: int) -> None:
    """Writes a part of an epoch's permutation of 0 to size - 1.

    The images of the positions first to first + count - 1 go to `out`, int64 [count]. For sizes of 2^16 and more;
    `shuffled` serves smaller sizes.
    """
    launch_threads(launcher, "gear_permuted", count, seed, epoch, first, size, out, count)


def shuffled(launcher: Launcher, seed: int, domain: int, epoch: int, out: int, size: int, work: int) -> None:
    """Writes an epoch's whole permutation to int64 [size], for sizes below 2^16.

    work: int32 [3 * size].
    """
    launcher.launch("gear_shuffled", 1, BLOCK, seed, domain, epoch, out, size, work)
