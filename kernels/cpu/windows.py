"""The windows of a batch, in one `nogil` call.

The kernel draws points, finds their episodes, finds the anchors, and cuts the windows.

Everything that stays the same between batches is in one record, WINDOW_PLAN of `gear_data.kernels.window_plan`. The
kernels take its address, because unpacking an array argument takes Numba as long as twenty draws. Each function loops
over all slots, and first prefetches the memory that it will read for all of them. So the cache misses of all slots
overlap, if the tables are larger than the caches.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types, uint64

from gear_data.kernels.cpu.native import address_of, cached_njit, call, int64s, pointer, prefetch
from gear_data.kernels.cpu.random import (
    DOMAIN_ANCHOR,
    DOMAIN_PLACE,
    below,
    draw_below,
    draw_words,
    multiply_high,
    word64,
)
from gear_data.kernels.cpu.step_mask import rank, select
from gear_data.kernels.cpu.turns import rows_by_part
from gear_data.kernels.window_plan import (
    ANCHOR_END,
    ANCHOR_START,
    WINDOW_PLAN,
    WITHIN_DRAWN,
    WITHIN_OFFSET,
    WITHIN_QUOTIENT,
    WITHIN_STEP,
)

#: After this many rejected repeats a slot draws from the weight that the earlier slots left.
MAX_REPEATS = 32
#: Tables of fewer episodes fit in the cache, and are not prefetched.
_CACHED_EPISODES = 4096
#: See `longest_fit`.
_NEGLIGIBLE = 400
#: An entry of a guide leaves fewer episodes than 2 to this power, mostly.
_HALVINGS = 3


@njit(nogil=True, cache=True, inline="always")
def _record(address):  # type: ignore[no-untyped-def]
    return carray(pointer(address), (1,), WINDOW_PLAN)[0]


@cached_njit
def fill_guide(prefix, shift, guide):  # type: ignore[no-untyped-def]
    """Fills the guide of a `PrefixTable`: guide[b] = the episode of point b << shift.

    The last entry is the episode of the last point.
    """
    episode, last = 0, prefix[len(prefix) - 1] - 1
    for b in range(len(guide)):
        point = min(b << shift, last)
        while prefix[episode + 1] <= point:
            episode += 1
        guide[b] = episode


@cached_njit
def _find_episodes(plan, out):  # type: ignore[no-untyped-def]
    """Finds the episodes of the points out[1].

    out[0] receives the episode, out[2] the point's offset in the episode's interval.
    """
    if plan.nodes:
        call(plan.find, (plan.nodes, plan.starts, plan.levels, out.ctypes.data, out.shape[1]))
        return
    count, shift, ahead = out.shape[1], plan.shift, plan.episodes >= _CACHED_EPISODES
    prefix = int64s(plan.prefix, plan.episodes + 1)
    guide = carray(pointer(plan.guide), (1 << 40,), np.uint32)
    if ahead:
        for i in range(count):
            prefetch(plan.guide + 4 * (out[1, i] >> shift))
        for i in range(count):
            near = 8 * np.int64(guide[out[1, i] >> shift])
            prefetch(plan.prefix + near)
            # For `_find_anchors`. Prefetched after the search, these lines come later than they are needed.
            if plan.offsets != plan.prefix:
                prefetch(plan.offsets + near)
    for i in range(count):
        point = out[1, i]
        low, high = np.int64(guide[point >> shift]), np.int64(guide[(point >> shift) + 1])
        # Most searches end after these halvings. They have no branch, which the processor could not predict.
        for _ in range(_HALVINGS):
            middle = (low + high + 1) >> 1
            above = prefix[middle] > point
            low, high = low if above else middle, middle - 1 if above else high
        while low < high:
            middle = (low + high + 1) >> 1
            if prefix[middle] <= point:
                low = middle
            else:
                high = middle - 1
        out[0, i], out[2, i] = low, point - prefix[low]


@njit(nogil=True, cache=True, inline="always")
def _int_weight_of(plan, episode):  # type: ignore[no-untyped-def]
    if plan.nodes:
        return int64s(plan.nodes, plan.episodes)[episode]
    prefix = int64s(plan.prefix, plan.episodes + 1)
    return prefix[episode + 1] - prefix[episode]


@njit(nogil=True, cache=True, inline="always")
def _add(table, number):  # type: ignore[no-untyped-def]
    """Adds a number to an open-addressing hash table; returns whether it is new."""
    place = (uint64(number) * uint64(0x9E3779B97F4A7C15)) >> uint64(20)
    while True:
        place &= uint64(len(table) - 1)
        if table[place] == number:
            return False
        if table[place] < 0:
            table[place] = number
            return True
        place += uint64(1)


@cached_njit
def _make_distinct(address, step, total, windows, count):  # type: ignore[no-untyped-def]
    """Draws again for every slot whose episode an earlier slot has.

    This is successive sampling: each slot draws in proportion to the weights of the episodes that no earlier slot has.
    Each slot has a separate stream of random points, counted by `attempt`, and takes the first point of a free episode.
    After MAX_REPEATS points of taken episodes, the slot draws once from the free points, laid end to end. The
    distribution is the same, and the time is bounded even if few episodes hold most of the weight.

    Args:
        address, step: see `draw_windows`.
        total: the total integer weight.
        windows: address of int64 [3, B], what `_find_episodes` found.
        count: B.
    """
    plan, out = _record(address), carray(pointer(windows), (3, count), np.int64)
    seed, domain = uint64(plan.seed), uint64(plan.domain)
    size = 4
    while size < 2 * count:
        size <<= 1
    table = np.full(size, -1, np.int64)
    # The intervals of the first `kept` slots' episodes, sorted; extended when a slot needs them.
    one = np.empty((3, 1), np.int64)
    begins, ends, kept = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for i in range(count):
        if _add(table, out[0, i]):
            continue
        attempt, repeats, bound = 0, 0, uint64(total)
        while True:
            if repeats == MAX_REPEATS:
                while kept < i:
                    begin, place = out[1, kept] - out[2, kept], kept
                    while place > 0 and begins[place - 1] > begin:
                        begins[place], ends[place] = begins[place - 1], ends[place - 1]
                        place -= 1
                    begins[place], ends[place] = begin, begin + _int_weight_of(plan, out[0, kept])
                    kept += 1
                for j in range(i):
                    bound -= uint64(ends[j] - begins[j])
            threshold = (uint64(0) - bound) % bound
            high, low = multiply_high(word64(seed, domain, step, i, attempt), bound)
            attempt += 1
            while low < threshold:
                high, low = multiply_high(word64(seed, domain, step, i, attempt), bound)
                attempt += 1
            point = np.int64(high)
            if repeats == MAX_REPEATS:
                for j in range(i):
                    if point < begins[j]:
                        break
                    point += ends[j] - begins[j]
            one[1, 0] = point
            _find_episodes(plan, one)
            if _add(table, one[0, 0]):
                break
            repeats += 1
        out[0, i], out[1, i], out[2, i] = one[0, 0], one[1, 0], one[2, 0]


def make_distinct() -> int:
    """Returns the address of the kernel for plans of distinct episodes."""
    return address_of(_make_distinct, (types.int64,) * 5)


@cached_njit
def _find_steps(plan, total, out, probability):  # type: ignore[no-untyped-def]
    """Finds the episodes of the steps out[0], which are counted over all episodes.

    out[0] receives the episodes, out[1] the steps in their episodes, and `probability` the probabilities of the steps.
    """
    offsets = int64s(plan.offsets, plan.episodes + 1)
    for i in range(out.shape[1]):
        step = out[0, i]
        probability[i] = np.float64(_int_weight_of(plan, step)) / np.float64(total)
        low, high = np.int64(0), plan.episodes - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if offsets[middle] <= step:
                low = middle
            else:
                high = middle - 1
        out[0, i], out[1, i] = low, step - offsets[low]


@cached_njit
def _find_anchors(plan, step, total, out):  # type: ignore[no-untyped-def]
    """Finds the anchors that the points' offsets out[2] select in the episodes out[0].

    out[1] receives the anchors' steps in their episodes. If `out` has a fourth row, it receives the anchors'
    probabilities as float64.
    """
    count, episodes, within = out.shape[1], plan.episodes, plan.within
    counts = int64s(plan.counts, episodes + 1)
    # A pointer, because Numba takes seconds to compile `view`.
    probability = carray(pointer(out.ctypes.data + 3 * 8 * count), (count,), np.float64)
    if within == WITHIN_STEP:
        _find_steps(plan, total, out, probability)
        return
    if episodes >= _CACHED_EPISODES:
        for i in range(count):
            prefetch(plan.counts + 8 * out[0, i])
            prefetch(plan.offsets + 8 * out[0, i])
            if plan.ids:
                prefetch(plan.ids + 8 * out[0, i])
            if plan.first:
                prefetch(plan.first + 8 * out[0, i])
    if within == WITHIN_DRAWN:
        draw_words(uint64(plan.seed), uint64(DOMAIN_ANCHOR), step, out[2])
    if within == WITHIN_OFFSET:
        for i in range(count):
            out[1, i] = out[2, i]
    else:
        for i in range(count):
            episode = out[0, i]
            int_weight, anchors = _int_weight_of(plan, episode), counts[episode + 1] - counts[episode]
            if within == WITHIN_QUOTIENT:
                index = out[2, i] // (int_weight // anchors)
            else:
                high, low = multiply_high(uint64(out[2, i]), uint64(anchors))
                index = np.int64(high)
                if low < uint64(anchors):
                    index = below(uint64(plan.seed), uint64(DOMAIN_ANCHOR), step, i, anchors)
            out[1, i] = index
            if out.shape[0] > 3:
                probability[i] = np.float64(int_weight) / np.float64(total) / np.float64(anchors)
    if plan.words:
        # The sizes of these arrays are unknown here; the kernel reads only valid indices.
        words = carray(pointer(plan.words), (1 << 40,), np.uint64)
        ranks, first = int64s(plan.ranks, 1 << 40), int64s(plan.first, episodes)
        offsets = int64s(plan.offsets, episodes + 1)
        for i in range(count):
            episode = out[0, i]
            begin, length = first[episode], offsets[episode + 1] - offsets[episode]
            index = rank(words, ranks, begin) + out[1, i]
            out[1, i] = select(words, ranks, begin, begin + length, index) - begin
    elif plan.stride > 1 or plan.origin:
        for i in range(count):
            out[1, i] = plan.origin + out[1, i] * plan.stride


@cached_njit
def _cut_windows(plan, step, out):  # type: ignore[no-untyped-def]
    """Cuts the windows of the anchors out[1] from the episodes out[0].

    out[0:3] receives the episode ids, the windows' first steps, and their lengths.
    """
    count, context, anchor = out.shape[1], plan.context, plan.anchor
    offsets = int64s(plan.offsets, plan.episodes + 1)
    if anchor == ANCHOR_START:
        for i in range(count):
            episode = out[0, i]
            out[2, i] = min(context, offsets[episode + 1] - offsets[episode] - out[1, i])
    elif anchor == ANCHOR_END:
        for i in range(count):
            last = out[1, i] + 1
            out[1, i] = max(0, last - context)
            out[2, i] = last - out[1, i]
    else:
        draw_below(uint64(plan.seed), uint64(DOMAIN_PLACE), step, context, out[2])
        for i in range(count):
            episode, begin = out[0, i], out[1, i] - out[2, i]
            length = offsets[episode + 1] - offsets[episode]
            if plan.allow_short:
                out[1, i] = max(0, begin)
                out[2, i] = min(length, begin + context) - out[1, i]
            else:
                out[1, i] = min(max(0, begin), length - context)
                out[2, i] = context
    if plan.ids:
        ids = int64s(plan.ids, plan.episodes)
        for i in range(count):
            out[0, i] = ids[out[0, i]]


@cached_njit
def first_fit(lengths, steps, limit, row):  # type: ignore[no-untyped-def]
    """Puts windows into rows: each into the first row that has place for it.

    Args:
        lengths: int64 [n], the windows' steps, at most `steps`. In descending order, the rows are fuller.
        steps: steps of a row.
        limit: the most rows.
        row: int64 [n], receives the row of each window.

    Returns:
        The number of rows; -1 if the windows need more than `limit`.
    """
    leaves = 1
    while leaves < limit:
        leaves <<= 1
    # A tree: each node has the most free steps of a row below it.
    free = np.zeros(2 * leaves, np.int64)
    free[leaves : leaves + limit] = steps
    for node in range(leaves - 1, 0, -1):
        free[node] = max(free[2 * node], free[2 * node + 1])
    rows, last, node = 0, np.int64(-1), 0
    for i in range(len(lengths)):
        length = lengths[i]
        # No earlier row has place for a window of the same length.
        if length != last or free[node] < length:
            above = node >> 1
            while above:
                free[above] = max(free[2 * above], free[2 * above + 1])
                above >>= 1
            if free[1] < length:
                return -1
            node, last = 1, length
            while node < leaves:
                node <<= 1
                if free[node] < length:
                    node += 1
        row[i] = node - leaves
        rows = max(rows, node - leaves + 1)
        free[node] -= length
    return rows


@cached_njit
def longest_fit(lengths, steps, rows, row):  # type: ignore[no-untyped-def]
    """Puts the first windows into rows, as many as fit, in descending order of their lengths.

    The search for their number ends if all further windows have less than 1 / `_NEGLIGIBLE` of the steps.

    Args:
        lengths: int64 [n], the windows' steps, at most `steps`.
        steps, rows: steps of a row, and number of rows.
        row: int64 [n], receives the row of each window that fits.

    Returns:
        The number of windows that fit.
    """
    before = np.zeros(len(lengths) + 1, np.int64)
    most, longest = 0, np.int64(0)
    while most < len(lengths) and before[most] + lengths[most] <= rows * steps:
        before[most + 1] = before[most] + lengths[most]
        longest = max(longest, lengths[most])
        most += 1
    # `low` windows fit: where one of `longest` does not fit, all rows have more than steps - longest. `high` do not.
    low, high, tried = 0, most + 1, most
    while low < most and before[low + 1] <= rows * (steps - longest + 1):
        low += 1
    found = -1
    # In descending order of length: a counting sort.
    first = np.zeros(longest + 2, np.int64)
    for i in range(most):
        first[longest - lengths[i] + 1] += 1
    for length in range(longest + 1):
        first[length + 1] += first[length]
    order = np.empty(most, np.int64)
    for i in range(most):
        place = longest - lengths[i]
        order[first[place]] = i
        first[place] += 1
    sizes, rows_found, kept = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    while found < low or high - low > 1:
        count = 0
        for i in range(most):
            if order[i] < tried:
                kept[count], sizes[count] = order[i], lengths[order[i]]
                count += 1
        if first_fit(sizes[:count], steps, rows, rows_found) < 0:
            high = tried
        else:
            low = found = tried
            for i in range(count):
                row[kept[i]] = rows_found[i]
        tried = (low + high) // 2
        if (before[high - 1] - before[low]) * _NEGLIGIBLE < rows * steps:
            if found == low:
                break
            tried = low
    return low


@cached_njit
def take_rows(row, order, count, chosen, taken):  # type: ignore[no-untyped-def]
    """Takes the windows of some rows, row by row, in the order of slots within a row.

    Args:
        row: int64 [n], the row of each window.
        order: int64 [rows], the number that each row gets. Rows with numbers below `count` are taken.
        count: number of rows to take.
        chosen, taken: int64 [n], receive the windows, and the numbers of their rows.

    Returns:
        The number of windows.
    """
    first = np.zeros(count + 1, np.int64)
    for i in range(len(row)):
        if order[row[i]] < count:
            first[order[row[i]] + 1] += 1
    for number in range(count):
        first[number + 1] += first[number]
    total = first[count]
    for i in range(len(row)):
        number = order[row[i]]
        if number < count:
            chosen[first[number]], taken[first[number]] = i, number
            first[number] += 1
    return total


@cached_njit
def cut_at_rows(length, skip, steps, rows, window, skipped, size, place):  # type: ignore[no-untyped-def]
    """Lays windows one after another over rows, and cuts them at the ends of rows.

    Args:
        length: int64 [n], the windows' steps.
        skip: steps of the first window before the first row.
        steps, rows: steps of a row, and number of rows. Steps beyond the last row are left out.
        window, skipped, size: int64 [n + rows], receive the window of each piece, the steps of the window before the
            piece, and the piece's steps.
        place: int64 [n + rows], receives the first step of each piece, counted over the steps of all rows.

    Returns:
        The number of pieces.
    """
    count, at, done = 0, np.int64(0), np.int64(skip)
    for i in range(len(length)):
        while done < length[i] and at < rows * steps:
            part = min(length[i] - done, steps - at % steps)
            window[count], skipped[count], size[count], place[count] = i, done, part, at
            done += part
            at += part
            count += 1
        done = np.int64(0)
    return count


@cached_njit
def anchors_of_rows(row, group, first, strata, groups, rotations, order, begin, out):  # type: ignore[no-untyped-def]
    """Finds the anchors of packed rows: see `gear_data.selection.packing.OrderedRows`.

    Args:
        row, group: int64 [rows], each row's number in its group, and the group.
        first, strata: int64 [rows of a group + 1] and [n], the strata of each row of a group, one row after another.
        groups: number of groups, and windows of a stratum.
        rotations: int64 [n], by how many windows each stratum is rotated; empty: by none.
        order: int64 [windows], the anchors, one stratum after another; the last stratum may have fewer.
        begin: number of the first row in `out`.
        out: int64 [2, windows of the rows or more], receives anchors and the numbers of their rows.

    Returns:
        The number of anchors.
    """
    count = 0
    for i in range(len(row)):
        for slot in range(first[row[i]], first[row[i] + 1]):
            stratum = strata[slot]
            place = group[i] + (rotations[stratum] if len(rotations) else 0)
            number = stratum * groups + (place - groups if place >= groups else place)
            if number < len(order):
                out[0, count], out[1, count] = order[number], begin + i
                count += 1
    return count


@cached_njit
def place_in_rows(row, length, steps, place):  # type: ignore[no-untyped-def]
    """Fills `place`, int64 [n]: the first step of each window, counted over the steps of all rows.

    Args:
        row: int64 [n], the row of each window, ascending.
        length: int64 [n], the windows' steps.
        steps: steps of a row.
    """
    current, next_place = np.int64(-1), np.int64(0)
    for i in range(len(row)):
        if row[i] != current:
            current, next_place = row[i], row[i] * steps
        place[i] = next_place
        next_place += length[i]


@cached_njit
def draw_windows(plan, step, out):  # type: ignore[no-untyped-def]
    """Draws the windows of slots 0 to B - 1 of `step`, B >= 1.

    Args:
        plan: address of a WINDOW_PLAN.
        step: the batch's step.
        out: int64 [3 or 4, B], receives episode ids, first steps, lengths, and in a fourth row the probabilities
            (float64).
    """
    record = _record(plan)
    total = int64s(record.total, 1)[0]
    draw_below(uint64(record.seed), uint64(record.domain), step, total, out[1])
    _find_episodes(record, out)
    if record.distinct:
        call(record.distinct, (plan, step, total, out.ctypes.data, out.shape[1]))
    _find_anchors(record, step, total, out)
    _cut_windows(record, step, out)


@cached_njit
def windows_of_points(plan, step, out):  # type: ignore[no-untyped-def]
    """Finds the windows of the points out[1], in slots 0 to B - 1 of `step`.

    Arguments as for `draw_windows`.
    """
    record = _record(plan)
    _find_episodes(record, out)
    _find_anchors(record, step, int64s(record.total, 1)[0], out)
    _cut_windows(record, step, out)


@cached_njit
def draw_each(plans, step, dataset, out):  # type: ignore[no-untyped-def]
    """Draws windows of several datasets. The rows of a dataset are its slots 0, 1, ... of `step`.

    Args:
        plans: int64 [datasets, 2], the address of each dataset's WINDOW_PLAN, and the rows of `draw_windows`: 3 or 4.
            The rows of a dataset with the address 0 stay as they are.
        step: the batch's step.
        dataset: int64 [B], the dataset of each window.
        out: int64 [4, B]; see `draw_windows`. A dataset of 3 rows leaves the fourth as it is.
    """
    order, bounds = rows_by_part(dataset, len(plans))
    memory = np.empty(4 * len(dataset), np.int64)
    for number in range(len(plans)):
        first, count = bounds[number], bounds[number + 1] - bounds[number]
        plan, kept = plans[number]
        if count == 0 or plan == 0:
            continue
        drawn = carray(pointer(memory.ctypes.data), (kept, count), np.int64)
        draw_windows(plan, step, drawn)
        for row in range(kept):
            for i in range(count):
                out[row, order[first + i]] = drawn[row, i]
