"""Rows of packed windows: first-fit decreasing against a plain loop, and the groups of an epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from gear_data.kernels import cpu
from gear_data.selection.anchors import Anchors
from gear_data.selection.packing import DrawnRows, OrderedRows, RowSize, SplitRows, packed_rows
from gear_data.selection.samplers import Candidates, Fifo, Shuffle, Uniform
from gear_data.selection.windows import WindowRule, Windows

RANDOM = np.random.default_rng(5)


def plain_first_fit(lengths: list[int], steps: int, limit: int) -> list[int] | None:
    free, rows = [steps] * limit, []
    for length in lengths:
        row = next((r for r in range(limit) if free[r] >= length), None)
        if row is None:
            return None
        free[row] -= length
        rows.append(row)
    return rows


CASES = {
    "uniform": RANDOM.integers(1, 26, 300),
    "equal": np.full(40, 30),
    "two sizes": RANDOM.choice([34, 17], 60),
    "whole rows": np.full(5, 100),
    "one": np.array([7]),
    "wide": RANDOM.integers(1, 101, 80),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", [1, 3, 8, 200])
def test_first_fit(case: str, limit: int) -> None:
    for lengths in (CASES[case], -np.sort(-CASES[case])):
        row = np.zeros(len(lengths), np.int64)
        rows = cpu.windows.first_fit(lengths, 100, limit, row)
        expected = plain_first_fit(lengths.tolist(), 100, limit)
        assert (rows == -1) if expected is None else (row.tolist() == expected and rows == max(expected) + 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 400])
def test_the_first_windows_that_fit_are_packed(case: str, rows: int) -> None:
    lengths = CASES[case]
    row = np.full(len(lengths), -1, np.int64)
    count = cpu.windows.longest_fit(lengths, 100, rows, row)
    order = np.argsort(-lengths[:count], kind="stable")
    assert row[:count][order].tolist() == plain_first_fit(lengths[:count][order].tolist(), 100, rows)
    assert np.bincount(row[:count], lengths[:count]).max() <= 100
    if count < len(lengths):
        # More than a four-hundredth of the steps would not fit: by their sum, or by another packing of more windows.
        more = count + 1
        while more < len(lengths) and lengths[count:more].sum() * 400 < rows * 100:
            more += 1
        packed = plain_first_fit((-np.sort(-lengths[:more])).tolist(), 100, rows)
        assert packed is None or lengths[count:more].sum() * 400 < rows * 100


def test_windows_are_cut_at_the_ends_of_rows() -> None:
    lengths = np.array([5, 1, 9, 2, 30])
    window, skipped, size, place = np.zeros((4, 8), np.int64)
    count = cpu.windows.cut_at_rows(lengths, 2, 10, 3, window, skipped, size, place)
    assert count == 7
    assert window[:7].tolist() == [0, 1, 2, 2, 3, 4, 4]
    assert skipped[:7].tolist() == [2, 0, 0, 6, 0, 0, 5]
    assert size[:7].tolist() == [3, 1, 6, 3, 2, 5, 10]
    assert place[:7].tolist() == [0, 3, 4, 10, 13, 15, 20]


def bound(sampler: Any, lengths: Any, context: int, steps: int, *, split: bool = False, **rule: Any) -> Any:
    anchors = Anchors(np.asarray(lengths), None, None, None, WindowRule(context, **rule))
    selector = sampler.bind(Candidates(anchors, lambda *_: np.empty(0)), 3)
    return packed_rows(selector, anchors, 3, RowSize(steps, steps), split=split)


def keys(windows: Windows) -> list[tuple[int, int]]:
    return list(zip(windows.episode_id.tolist(), windows.start.tolist(), strict=True))


@pytest.mark.parametrize("sampler", [Fifo(), Shuffle()])
@pytest.mark.parametrize("count", [1, 7, 300, 4000])
def test_an_epoch_has_every_window_and_full_rows(sampler: Any, count: int) -> None:
    lengths = np.random.default_rng(count).integers(1, 129, count)
    rows = bound(sampler, lengths, 128, 512, stride=128)
    assert isinstance(rows, OrderedRows)
    of_epoch = rows.epoch_slots(1)
    for epoch in (0, 1, 1000):
        windows = rows.select(0, of_epoch, epoch * of_epoch)
        assert Counter(keys(windows)) == Counter((episode, 0) for episode in range(count))
        assert windows.packing is not None and windows.packing.rows == of_epoch
        ends = windows.packing.ends(windows.length)
        assert ends.max() <= 512 and ends.min() > 0
    if count >= 300:
        assert lengths.sum() / (512 * of_epoch) > (0.98 if count > 1000 else 0.96)


def test_any_batches_have_the_rows_of_an_epoch() -> None:
    """The rows do not depend on how many are selected at once, also where an epoch ends."""
    rows = bound(Shuffle(), np.random.default_rng(1).integers(1, 129, 900), 30, 128, stride=7)
    last = 2 * rows.epoch_slots(1) + 5
    whole = rows.select(0, last, 0)
    for size in (1, 3, 64):
        found = []
        for first in range(0, last, size):
            found += keys(rows.select(9, min(size, last - first), first))
        assert found == keys(whole)


def test_windows_of_one_row_differ_by_epoch() -> None:
    rows = bound(Shuffle(), np.random.default_rng(1).integers(1, 129, 4000), 128, 512, stride=128)
    count = rows.epoch_slots(1)
    groups = []
    for epoch in range(2):
        windows = rows.select(0, count, epoch * count)
        row = windows.packing.place // 512
        groups.append({frozenset(windows.episode_id[row == number].tolist()) for number in range(count)})
    # A few rows have one window each.
    assert len(groups[0] & groups[1]) < 0.1 * count


@pytest.mark.parametrize("lengths", [np.full(50, 300), np.full(7, 512), [500, 300, 300, 10, 5]])
def test_long_windows_leave_room(lengths: Any) -> None:
    rows = bound(Shuffle(), lengths, 512, 512, stride=512)
    windows = rows.select(0, rows.epoch_slots(1), 0)
    assert Counter(keys(windows)) == Counter((episode, 0) for episode in range(len(lengths)))
    assert rows.epoch_slots(1) <= len(lengths)


def test_drawn_rows_do_not_depend_on_what_was_drawn_before() -> None:
    lengths = np.random.default_rng(2).integers(1, 400, 50)
    one, other = (bound(Uniform(), lengths, 400, 400, stride=400) for _ in range(2))
    assert isinstance(one, DrawnRows)
    expected = [keys(one.select(step, 5, step * 5)) for step in range(20)]
    assert [keys(other.select(step, 5, step * 5)) for step in reversed(range(20))] == expected[::-1]


def test_a_row_of_a_far_epoch_is_found_at_once() -> None:
    rows = bound(Shuffle(), np.random.default_rng(2).integers(1, 100, 200), 100, 64, stride=100, split=True)
    assert isinstance(rows, SplitRows)
    total = int(np.random.default_rng(2).integers(1, 100, 200).sum())
    far = 10**9 * total // 64 * 64
    windows = rows.select(0, 3, far // 64)
    assert windows.length.sum() == 3 * 64 and windows.packing.skipped[1:].max() <= 100
