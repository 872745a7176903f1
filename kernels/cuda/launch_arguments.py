"""Launches of `collect.cu` and `select.cu`: arguments, grid sizes and working memory.

Arguments named after memory are addresses on the device. This module itself needs no GPU.
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


def launch_threads(launcher: Launcher, kernel: str, threads: int, *arguments: int) -> int:
    """Launches a kernel for the work of `threads` threads. Returns the number of blocks.

    Every kernel also works with fewer threads.
    """
    if not threads:
        return 0
    size = grid(threads, BLOCK, launcher.blocks)
    launcher.launch(kernel, *size, *arguments)
    return size[0]


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
    """Addresses of a plan, of the places of its arrays and of its pieces.

    Attributes:
        plan: OUTPUT_PLAN [outputs], see `gear_data.kernels.output_plan`.
        outputs: number of outputs.
        offsets: int64 [outputs], the first byte of each array in the memory of batches.
        pieces: int64 [outputs + 1], the result of `piece_counts`.
        pieces_per_window: the last of these numbers.
    """

    plan: int
    outputs: int
    offsets: int
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
    memory: int,
    row_of_window: int = 0,
) -> None:
    """Fills every output of one or more batches in one launch.

    Args:
        launcher: launches the kernel.
        tables, plan, windows: the inputs.
        memory: the memory of the batches; `plan` says where the arrays [batch rows, width, out_bytes] lie in it.
        row_of_window: int64 [count], the row that each window fills; 0: window b fills row b.
    """
    threads = windows.count * plan.pieces_per_window * _LANES
    if not threads:
        return
    size = grid(threads, launcher.tuning.build(tables.pinned).threads, launcher.collect_blocks(tables.pinned))
    launcher.launch(
        COLLECT_PINNED if tables.pinned else COLLECT, *size,
        windows.episode, windows.start, windows.length, windows.order, row_of_window, windows.count,
        tables.shards, tables.bases, tables.lengths, tables.finals, tables.addresses, tables.columns,
        plan.plan, plan.outputs, memory, plan.offsets, plan.pieces,
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


# Selection. plan: a WINDOW_PLAN, see `gear_data.kernels.window_plan`. out: int64 [rows, batches, count].


def row_groups(plan: OutputPlanArray) -> npt.NDArray[np.int64]:
    """Groups the outputs of a plan by the rows that they have.

    Returns:
        int64 [groups, 7], the argument `groups` of the kernels that draw: `RowGroup` of `select.cu`. The last number is
        the bytes of a row of all outputs of the group.
    """
    groups: dict[tuple[int, ...], int] = {}
    for output in plan:
        # Not padding, whatever the hops are: see `count_valid` of `gear_data.kernels.cpu.collect`.
        rows = output["first"], output["width"], output["within"], output["shift"] > 0, output["finals"] != 0
        key = tuple(int(value) for value in (*rows, output["hops"] > 0))
        groups[key] = groups.get(key, 0) + int(output["out_bytes"])
    return np.array([[*key, nbytes] for key, nbytes in groups.items()], np.int64)


@dataclass(frozen=True)
class Counting:
    """The bytes of valid rows of drawn windows that a kernel counts.

    Attributes:
        groups: address of the result of `row_groups`; 0: nothing is counted.
        group_count: number of groups.
        lengths, finals: see `EpisodeTables`.
        sums: uint64 [batches, blocks of a batch], memory of the device or pinned memory, receives a sum of each block.
    """

    groups: int
    group_count: int
    lengths: int
    finals: int
    sums: int

    @property
    def arguments(self) -> tuple[int, ...]:
        """The last arguments of a kernel that draws."""
        return self.groups, self.group_count, self.lengths, self.finals, self.sums


NOT_COUNTED = Counting(0, 0, 0, 0, 0)


@dataclass(slots=True)  # not frozen: see gear_data.selection.windows
class Slots:
    """The slots that a launch draws, of the batches of consecutive steps.

    Attributes:
        step: of the first batch.
        first, count: the slots first to first + count - 1 of each batch are drawn.
        whole: slots of a whole batch.
        batches: number of batches.
    """

    step: int
    first: int
    count: int
    whole: int
    batches: int = 1

    @classmethod
    def of_batch(cls, step: int, count: int) -> Slots:
        """Returns all slots of one batch."""
        return cls(step, 0, count, count)


def draw_windows(
    launcher: Launcher, plan: int, slots: Slots, out: int, rows: int, counting: Counting = NOT_COUNTED
) -> int:
    """Draws windows.

    A fourth row receives their probabilities. Returns the number of sums of a batch.
    """
    return _launch_draw(launcher, "gear_draw_windows", plan, slots, out, (rows,), counting)


def _launch_draw(
    launcher: Launcher, kernel: str, plan: int, slots: Slots, out: int, more: tuple[int, ...], counting: Counting
) -> int:
    if not slots.count:
        return 0
    blocks, block = grid(slots.count, BLOCK, launcher.blocks)
    at_once = min(slots.batches, launcher.blocks // blocks)
    launcher.launch(
        kernel, blocks * at_once, block, plan, slots.step, slots.batches, blocks, slots.first, out, slots.count, *more,
        *counting.arguments,
    )  # fmt: skip
    return blocks


def holders_size(count: int) -> int:
    """Returns the entries of the table in the working memory of `draw_distinct_windows`.

    An entry is two uint64.
    """
    return 1 << max(2, (4 * count - 1).bit_length())


def distinct_words(count: int) -> int:
    """Returns the numbers of working memory that `draw_distinct_windows` needs for a batch of `count` slots."""
    return 3 * count + 2 * holders_size(count)


def draw_distinct_windows(
    launcher: Launcher, plan: int, slots: Slots, out: int, rows: int, work: int, counting: Counting = NOT_COUNTED
) -> int:
    """Draws windows by a plan that draws no episode twice in a batch. Returns the number of sums of a batch.

    work: int64 [batches, distinct_words(slots.whole)], working memory.
    """
    if not slots.count:
        return 0
    launcher.launch(
        "gear_draw_distinct", min(slots.batches, launcher.blocks), BLOCK, plan, slots.step, slots.batches, slots.first,
        out, slots.count, rows, slots.whole, work, holders_size(slots.whole), *counting.arguments,
    )  # fmt: skip
    return 1


@dataclass(frozen=True)
class EpochOrder:
    """The points of all epochs, one epoch after another.

    Attributes:
        total: points of an epoch.
        seed: seed of the permutations of `permuted`; None: the points are in the order of the dataset.
    """

    total: int
    seed: int | None


def draw_in_order(
    launcher: Launcher, plan: int, slots: Slots, out: int, position: int, order: EpochOrder,
    counting: Counting = NOT_COUNTED,
) -> int:  # fmt: skip
    """Finds the windows of slots whose points have an order. Returns the number of sums of a batch.

    position: points before slot 0 of the first batch, counted over all epochs.
    """
    permuted = order.seed is not None
    more = slots.whole, position, order.total, permuted, order.seed or 0
    return _launch_draw(launcher, "gear_draw_in_order", plan, slots, out, more, counting)


def in_order(launcher: Launcher, first: int, out: int, count: int) -> None:
    """Writes first, first + 1, ... to int64 [count]."""
    launch_threads(launcher, "gear_in_order", count, first, out, count)


def permuted(launcher: Launcher, seed: int, epoch: int, first: int, size: int, out: int, count: int) -> None:
    """Writes a part of an epoch's permutation of 0 to size - 1.

    The images of the positions first to first + count - 1 go to `out`, int64 [count].
    """
    launch_threads(launcher, "gear_permuted", count, seed, epoch, first, size, out, count)
