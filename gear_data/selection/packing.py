"""Packing: rows of a fixed number of steps, filled with whole windows.

`DrawnRows` is for samplers whose slots are independent draws: a step draws windows until its rows are full.
`OrderedRows` and `SplitRows` are for samplers that select every window once an epoch. The rows of a step are a pure
function of (seed, step).

Why: docs/explanation/decisions/packing.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.kernels.window_plan import WITHIN_OFFSET
from gear_data.selection.anchors import Anchors
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.custom import CustomSelector
from gear_data.selection.samplers.fifo_shuffle import OrderSelector, Permuted, Shuffle
from gear_data.selection.samplers.sampler import Selector
from gear_data.selection.samplers.weighted_selector import WeightedSelector
from gear_data.selection.window_sampler import SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Packing, Windows
from gear_data.storage.episode_block import offsets_of

#: A step fills at least the rows of so many longest windows, at most 16 rows, and takes some of them: the last
#: windows of few rows leave much room.
_LONGEST_AT_ONCE, _ROWS_AT_ONCE = 64, 16
#: The rows of a group, from the fewest to the most. Larger groups are fuller, and fewer.
_ROWS_OF_GROUP = (*range(32, 128, 8), 128, 256, 512)
#: The first number of rows that fills this share of the steps is taken.
_FULL = 0.99
_NO_ROTATIONS = np.empty(0, np.int64)
_NO_ROTATIONS.flags.writeable = False
#: Windows whose lengths are computed at once.
_CHUNK = 1 << 16


@dataclass(frozen=True)
class RowSize:
    """The size of packed rows.

    Attributes:
        steps: the most steps of a row.
        room: the tokens of a row, if steps have unlike numbers of tokens; else its steps.
        tokens: returns the tokens of windows, int64 [n]; None: rows count steps. Picklable.
    """

    steps: int
    room: int
    tokens: Callable[[Windows], Int64Array] | None = None

    def sizes(self, windows: Windows) -> Int64Array:
        """Returns how much room each window takes, int64 [n]."""
        return windows.length if self.tokens is None else self.tokens(windows)


class _OfSelector:
    """What selectors of packed rows take from the selector of their windows."""

    _selector: Selector

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        return None

    def shares(self) -> Float64Array:
        return self._selector.shares()

    def identity(self) -> dict[str, Any]:
        return self._selector.identity()


class DrawnRows(_OfSelector):
    """A `Selector` of packed rows, whose windows are independent draws.

    A step draws windows in the order of slots, as many as fit into its rows in descending order of length (first-fit
    decreasing). The first window that does not fit ends the step. Of a batch of few rows, more rows are filled, and
    some of them are taken at random. So every window keeps its probability, but for the one that ends the step.

    Args:
        selector: draws the windows. The windows of a step's first slots are the same for any number of slots.
        seed: 0 to 2^64 - 1.
        size: the size of a row; at least the one of every window.
        longest: the most steps of a window; or tokens, if rows count them.
        slots: slots of a row, for a selector whose windows depend on the number of slots; None: as many as needed.
        split: whether windows lie one after another in the order of slots, cut at the ends of rows.
    """

    def __init__(
        self, selector: Selector, seed: int, size: RowSize, longest: int, slots: int | None = None, *,
        split: bool = False,
    ) -> None:  # fmt: skip
        self._at_once = min(_ROWS_AT_ONCE, -(-_LONGEST_AT_ONCE * longest // size.room))
        self._selector, self._seed, self._size, self._split = selector, seed, size, split
        self._fixed = slots
        # Learned from earlier steps. It changes how often windows are drawn again, and not which.
        self._slots = 8

    def select(self, step: int, count: int, position: int) -> Windows:
        """Selects the windows of `count` rows. position: this selector's rows in all earlier batches."""
        if self._split:
            windows = self._drawn(step, count, position)
            return self._of_rows(step, _cut(windows, 0, self._size.steps, count))
        rows = count if self._fixed is not None else max(count, self._at_once)
        windows = self._drawn(step, rows, position)
        row = np.empty(len(windows), np.int64)
        fitting = int(cpu.windows.longest_fit(self._size.sizes(windows), self._size.room, rows, row))
        order = np.empty(rows, np.int64)
        cpu.random.shuffled(np.uint64(self._seed), cpu.random.DOMAIN_PACK, step, order)
        chosen, taken = np.empty((2, fitting), np.int64)
        total = int(cpu.windows.take_rows(row[:fitting], order, count, chosen, taken))
        return self._of_rows(step, in_rows(windows[chosen[:total]], taken[:total], self._size, count))

    def _of_rows(self, step: int, windows: Windows) -> Windows:
        """Returns the windows of the rows of a step, which have the importance weights of a batch of these windows.

        Divided by the largest of all windows that were drawn, they would depend on how many were drawn.
        """
        importance = self._selector.importance if isinstance(self._selector, WeightedSelector) else None
        if importance is not None and importance.divide_by_max and windows.probability is not None:
            windows.importance = importance(step, windows.probability)
        return windows

    def _drawn(self, step: int, rows: int, position: int) -> Windows:
        """Returns drawn windows, which fill the rows or more."""
        if self._fixed is not None:
            return self._selector.select(step, rows * self._fixed, position * self._fixed)
        while True:
            windows = self._selector.select(step, rows * self._slots, position)
            total, room = int(self._size.sizes(windows).sum()), rows * self._size.room
            if total > room:
                return windows
            self._slots = max(self._slots + 1, -(-self._slots * room * 9 // (8 * total)))

    def epoch_slots(self, epochs: int) -> int | None:
        return None


class OrderedRows(_OfSelector):
    """A `Selector` of packed rows that have every window once an epoch.

    The windows, in descending order of length, are cut into strata of m windows. Every group of rows has one window of
    each stratum, so there are m groups. The longest windows of the strata are packed once, by first-fit decreasing;
    every group packs its windows likewise, and they fit. So all groups have the same number of rows, an epoch has m
    times as many, and the windows of any row are found without those before it.

    In each epoch, the windows of a stratum are dealt to the groups by another rotation, and rows come in another order.

    Args:
        selector: selects the windows without packing.
        anchors: the episodes and their anchors; the length of a window depends on its anchor only.
        seed: 0 to 2^64 - 1.
        size: the size of a row; at least the one of every window.
        shuffled: whether each epoch is another; else all epochs have the same order.
    """

    def __init__(self, selector: Selector, anchors: Anchors, seed: int, size: RowSize, *, shuffled: bool) -> None:
        self._selector, self._seed, self._size, self._shuffled = selector, seed, size, shuffled
        self._windows = window_finder(anchors, seed)
        total = anchors.total
        lengths = _sizes(self._windows, total, size)
        # Windows of one length come in a random order, so that no stratum is a part of the dataset.
        mixed = Permuted(seed, total)(0, 0, total) if shuffled else np.arange(total)
        self._order = mixed[np.argsort(size.room - lengths[mixed], kind="stable")]
        self._groups, row = _strata(lengths[self._order].astype(np.int64), size.room)
        #: The strata of each row of a group, one row after another, and where each row's begin.
        self._strata = row.argsort(kind="stable")
        self._first = offsets_of(np.bincount(row))
        self._rows = len(self._first) - 1
        self._permuted = Permuted(seed, self._rows * self._groups)

    def select(self, step: int, count: int, position: int) -> Windows:
        """Selects the windows of `count` rows. position: this selector's rows in all earlier batches."""
        parts, begin = [], 0
        plan = SamplingPlan(self._windows, total=self._permuted.size)
        for epoch, first, taken in plan.spans(position, count):
            parts.append(self._windows_of(epoch, first, taken, begin))
            begin += taken
        anchors, rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return in_rows(self._windows.windows(anchors, step), rows, self._size, count)

    def _windows_of(self, epoch: int, first: int, count: int, begin: int) -> Int64Array:
        """Returns the windows of some rows of an epoch: int64 [2, n], their anchors, and their rows from `begin` on."""
        if self._shuffled:
            row, group = np.divmod(self._permuted(epoch, first, count), self._groups)
        else:
            group, row = np.divmod(np.arange(first, first + count), self._rows)
        rotations = _NO_ROTATIONS
        if self._shuffled:
            rotations = _rotations(self._seed, epoch, self._groups, len(self._strata))
        out = np.empty((2, int((self._first[row + 1] - self._first[row]).sum())), np.int64)
        found = cpu.windows.anchors_of_rows(
            row, group, self._first, self._strata, self._groups, rotations, self._order, begin, out
        )
        return out[:, :found]

    def epoch_slots(self, epochs: int) -> int | None:
        return epochs * self._permuted.size


class SplitRows(_OfSelector):
    """A `Selector` of full rows: the windows of all epochs lie one after another, cut at the ends of rows.

    A window that is cut goes on in the next row. Every epoch has the same number of steps, so the epoch of a row is
    known. Its windows are found by the running sums of lengths in the epoch's order: 8 bytes a window.

    Args:
        selector: selects the windows without packing.
        anchors: the episodes and their anchors; the length of a window depends on its anchor only.
        seed: 0 to 2^64 - 1.
        steps: steps of a row.
    """

    _selector: OrderSelector

    def __init__(self, selector: OrderSelector, anchors: Anchors, seed: int, steps: int) -> None:
        self._selector, self._steps = selector, steps
        self._windows = window_finder(anchors, seed)
        self._lengths = _sizes(self._windows, anchors.total, RowSize(steps, steps))
        self._total = int(self._lengths.sum(dtype=np.int64))
        #: Epoch -> the steps before each window of its order, of the last epochs that were asked for.
        self._before: dict[int, Int64Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_before": {}}

    def select(self, step: int, count: int, position: int) -> Windows:
        """Selects the windows of `count` rows. position: this selector's rows in all earlier batches."""
        at, end = position * self._steps, (position + count) * self._steps
        anchors, skip = [], None
        while at < end:
            epoch, first = divmod(at, self._total)
            last = min(first + end - at, self._total)
            before = self._steps_before(epoch)
            low = int(np.searchsorted(before, first, "right")) - 1
            high = int(np.searchsorted(before, last, "left"))
            anchors.append(self._selector.order(epoch, low, high - low))
            skip = first - int(before[low]) if skip is None else skip
            at += last - first
        windows = self._windows.windows(np.concatenate(anchors) if anchors else np.empty(0, np.int64), step)
        return _cut(windows, skip or 0, self._steps, count)

    def _steps_before(self, epoch: int) -> Int64Array:
        found = self._before.get(epoch)
        if found is None:
            found = offsets_of(self._lengths[self._selector.order(epoch, 0, len(self._lengths))].astype(np.int64))
            # Another thread may read the dictionary: it gets a new one. A batch may have the end of one epoch.
            self._before = {**dict(list(self._before.items())[-1:]), epoch: found}
        return found

    def epoch_slots(self, epochs: int) -> int | None:
        return -(-epochs * self._total // self._steps)


#: A selector of packed rows.
PackedRows = DrawnRows | OrderedRows | SplitRows


def packed_rows(
    selector: Selector, anchors: Anchors, seed: int, size: RowSize, *, split: bool, longest: int | None = None
) -> PackedRows:
    """Returns the selector of packed rows for a selector of windows.

    Args:
        selector: selects windows, of at most the size of a row unless they are split.
        anchors: the anchors to which it is bound.
        seed: its seed.
        size: the size of a row.
        split: whether windows may go on in the next row; rows then count steps.
        longest: the most tokens of a window, if rows count tokens.

    Raises:
        InvalidArgumentError: every window once an epoch, and a window's length is drawn.
    """
    if isinstance(selector, OrderSelector):
        if anchors.rule.anchor == "random":
            raise InvalidArgumentError(
                f"pack= puts every window of an epoch in a row, and with anchor='random' and sampler '{selector.name}' "
                "the steps of a window are drawn",
                hint="give WindowOptions(anchor='start') or anchor='end', or sampler='uniform'",
            )
        if split:
            return SplitRows(selector, anchors, seed, size.steps)
        return OrderedRows(selector, anchors, seed, size, shuffled=selector.name == Shuffle.name)
    slots = None
    if isinstance(selector, CustomSelector):
        some = np.unique(np.linspace(0, anchors.total - 1, _CHUNK).astype(np.int64))
        mean = size.sizes(window_finder(anchors, seed).windows(some, 0)).mean()
        slots = int(1.25 * size.room / mean) + 1
    if longest is None:
        longest = min(anchors.rule.context, int(np.diff(anchors.offsets).max()))
    return DrawnRows(selector, seed, size, longest, slots, split=split)


def in_rows(windows: Windows, row: Int64Array, size: RowSize, rows: int) -> Windows:
    """Returns windows with their places in packed rows. row: int64 [n], the row of each window, ascending."""
    place = np.empty(len(row), np.int64)
    cpu.windows.place_in_rows(row, windows.length, size.steps, place)
    sizes = None if size.tokens is None else size.tokens(windows)
    windows.packing = Packing(size.steps, rows, place, sizes=sizes)
    return windows


def _cut(windows: Windows, skip: int, steps: int, rows: int) -> Windows:
    """Returns the pieces of windows that lie one after another. skip: steps of the first window before the rows."""
    window, skipped, size, place = np.empty((4, len(windows) + rows), np.int64)
    count = int(cpu.windows.cut_at_rows(windows.length, skip, steps, rows, window, skipped, size, place))
    pieces = windows[window[:count]]
    pieces.start, pieces.length = pieces.start + skipped[:count], size[:count]
    pieces.packing = Packing(steps, rows, place[:count], skipped[:count])
    return pieces


def joined_rows(parts: Sequence[tuple[Windows, Int64Array]], rows: int) -> Windows:
    """Returns the packed windows of several datasets, in the order of their rows.

    Args:
        parts: for each dataset its windows, with `source` int64 [n], and int64 [r], the rows of the batch that its rows
            are.
        rows: rows of the batch.
    """
    packings = [(each.packing, row) for each, row in parts if each.packing is not None]
    # Rows of datasets whose steps have unlike numbers of tokens have unlike numbers of steps.
    steps = max(own.steps for own, _ in packings)
    place = np.concatenate([row[own.place // own.steps] * steps + own.place % own.steps for own, row in packings])
    order = place.argsort()
    skipped = [own.skipped for own, _ in packings if own.skipped is not None]
    sizes = [own.sizes for own, _ in packings if own.sizes is not None]

    def joined(name: str, missing: float | None = None) -> Any:
        values = [getattr(each, name) for each, _ in parts]
        if all(value is None for value in values):
            return None
        given = [
            np.full(len(each), missing) if value is None else value
            for value, (each, _) in zip(values, parts, strict=True)
        ]
        return np.concatenate(given)[order]

    return Windows(
        joined("episode_id"), joined("start"), joined("length"), joined("probability", np.nan), joined("importance", 1),
        joined("source"),
        packing=Packing(
            steps, rows, place[order], np.concatenate(skipped)[order] if skipped else None,
            np.concatenate(sizes)[order] if sizes else None,
        ),
    )  # fmt: skip


def window_finder(anchors: Anchors, seed: int) -> WindowSampler:
    """Returns a sampler whose points are the anchors."""
    return WindowSampler(anchors, PrefixTable(anchors.prefix), seed, cpu.random.DOMAIN_SHUFFLE, WITHIN_OFFSET)


def _sizes(windows: WindowSampler, total: int, size: RowSize) -> npt.NDArray[np.int32]:
    """Returns how much room each of all windows takes, int32 [total]."""
    lengths = np.empty(total, np.int32)
    for first in range(0, total, _CHUNK):
        points = np.arange(first, min(first + _CHUNK, total))
        lengths[first : first + len(points)] = size.sizes(windows.windows(points, 0))
    return lengths


def _strata(lengths: Int64Array, room: int) -> tuple[int, Int64Array]:
    """Returns the number of groups, and the row of each stratum in a group.

    lengths: int64 [n], how much room the windows take, in descending order.
    """
    total, best, found = int(lengths.sum()), 0.0, (1, np.zeros(0, np.int64))
    for groups in (*(max(1, total // (rows * room)) for rows in _ROWS_OF_GROUP), 1):
        longest = np.ascontiguousarray(lengths[::groups])
        row = np.empty(len(longest), np.int64)
        rows = int(cpu.windows.first_fit(longest, room, len(longest), row))
        occupancy = total / (rows * groups * room)
        # Rows of some groups would be empty if the last stratum has a row of its own, and too few windows.
        full = len(lengths) % groups == 0 or np.count_nonzero(row == row[-1]) > 1
        if full and occupancy > best:
            best, found = occupancy, (groups, row)
        if best >= _FULL or (groups == 1 and best):
            break
    return found


@lru_cache(maxsize=64)
def _rotations(seed: int, epoch: int, groups: int, strata: int) -> Int64Array:
    """Returns by how much each stratum's windows are rotated among the groups, int64 [strata]."""
    out = np.empty(strata, np.int64)
    cpu.random.draw_below(np.uint64(seed), cpu.random.DOMAIN_PACK, epoch, groups, out)
    out.flags.writeable = False
    return out
