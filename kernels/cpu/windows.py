"""A batch's windows in one `nogil` call: draw, find the episode, find the anchor in it, cut the window.

What does not change between batches is in a plan, int64 [PLAN_FIELDS]: Numba spends as long on unpacking an array
argument as on drawing twenty windows. Loops are staged: one asks for the cache lines that the next reads, so that
draws from a table larger than the caches wait together.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, uint64

from gear_data.kernels.cpu.native import pointer, prefetch
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
from gear_data.kernels.cpu.weight_tree import find

#: How the anchor in an episode is found.
WITHIN_OFFSET = 0  # the drawn point is the anchor's number
WITHIN_QUOTIENT = 1  # the episode's quanta are divided evenly among its anchors
WITHIN_DRAWN = 2  # by a second draw

#: Which place an anchor has in its window, in the order of `gear_data.selection.windows.ANCHORS`.
ANCHOR_START, ANCHOR_END, ANCHOR_RANDOM = range(3)

#: Fields of a plan. Addresses are of int64 arrays where nothing else is said.
(
    SEED,
    DOMAIN,  # of the first draw
    EPISODES,  # how many: k
    TOTAL,  # address of the number of quanta
    PREFIX,  # address of [k + 1]: quanta before each episode; 0: they are in a tree
    GUIDE,  # address of uint32: the episode of point b << SHIFT, for every b, and last that of the last point
    SHIFT,
    NODES,  # address of a tree's nodes (see gear_data.kernels.cpu.weight_tree)
    STARTS,  # address of the first node of each of its levels
    LEVELS,  # how many levels it has
    DISTINCT,  # 1: no episode twice in one batch
    WITHIN,  # WITHIN_...
    COUNTS,  # address of [k + 1]: anchors before each episode
    OFFSETS,  # address of [k + 1]: steps before each episode
    IDS,  # address of [k]; 0: an episode's id is its number
    WORDS,  # address of a mask's uint64 words: anchors are its steps; 0: anchors are evenly spaced
    RANKS,  # address of its running counts
    FIRST,  # address of [k]: the mask's step that each episode begins at
    CONTEXT,
    STRIDE,
    ORIGIN,  # an episode's first anchor
    ANCHOR,  # ANCHOR_...
    SHORT,  # 1: windows may be shorter than the context
    PLAN_FIELDS,
) = range(24)

#: Rejected repeats after which a slot draws from what the earlier slots have left.
MAX_REPEATS = 32
#: Tables of fewer episodes lie in the cache: nothing is fetched ahead.
_CACHED_EPISODES = 4096


@njit(nogil=True, cache=True, inline="always")
def _int64s(address, size):  # type: ignore[no-untyped-def]
    return carray(pointer(address), (size,), np.int64)


@njit(nogil=True, cache=True)
def fill_guide(prefix, shift, guide):  # type: ignore[no-untyped-def]
    """guide[b] = the episode of point b << shift, the last point's at the end."""
    episode, last = 0, prefix[len(prefix) - 1] - 1
    for b in range(len(guide)):
        point = min(b << shift, last)
        while prefix[episode + 1] <= point:
            episode += 1
        guide[b] = episode


@njit(nogil=True, cache=True)
def _find_episodes(plan, out):  # type: ignore[no-untyped-def]
    """out[0] = the episodes of the quanta out[1], out[2] = how many quanta each has before it in its episode."""
    if plan[NODES]:
        find(plan[NODES], _int64s(plan[STARTS], plan[LEVELS]), out)
        return
    count, shift, ahead = out.shape[1], plan[SHIFT], plan[EPISODES] >= _CACHED_EPISODES
    prefix = _int64s(plan[PREFIX], plan[EPISODES] + 1)
    guide = carray(pointer(plan[GUIDE]), (1 << 40,), np.uint32)
    if ahead:
        for i in range(count):
            prefetch(plan[GUIDE] + 4 * (out[1, i] >> shift))
        for i in range(count):
            prefetch(plan[PREFIX] + 8 * np.int64(guide[out[1, i] >> shift]))
    for i in range(count):
        point = out[1, i]
        low, high = np.int64(guide[point >> shift]), np.int64(guide[(point >> shift) + 1])
        while low < high:
            middle = (low + high + 1) >> 1
            if prefix[middle] <= point:
                low = middle
            else:
                high = middle - 1
        out[0, i], out[2, i] = low, point - prefix[low]


@njit(nogil=True, cache=True, inline="always")
def _int_weight_of(plan, episode):  # type: ignore[no-untyped-def]
    if plan[NODES]:
        return _int64s(plan[NODES], plan[EPISODES])[episode]
    prefix = _int64s(plan[PREFIX], plan[EPISODES] + 1)
    return prefix[episode + 1] - prefix[episode]


@njit(nogil=True, cache=True, inline="always")
def _add(table, number):  # type: ignore[no-untyped-def]
    """Puts a number into an open hash table; whether it was not there."""
    place = (uint64(number) * uint64(0x9E3779B97F4A7C15)) >> uint64(20)
    while True:
        place &= uint64(len(table) - 1)
        if table[place] == number:
            return False
        if table[place] < 0:
            table[place] = number
            return True
        place += uint64(1)


@njit(nogil=True, cache=True)
def _make_distinct(plan, step, total, out):  # type: ignore[no-untyped-def]
    """Draws anew every slot whose episode an earlier one has: successive sampling, in proportion to what is left.

    A slot takes the first point of an episode not taken from a stream of its own, counted by the attempt. After
    MAX_REPEATS repeats it draws once from the quanta not taken, laid end to end: the same distribution, in bounded time
    where few episodes hold most of the weight.
    """
    count, seed, domain = out.shape[1], uint64(plan[SEED]), uint64(plan[DOMAIN])
    size = 4
    while size < 2 * count:
        size <<= 1
    table = np.full(size, -1, np.int64)
    # First point and end of the first `kept` slots' episodes, in order; kept up from the first slot that needs it on.
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


@njit(nogil=True, cache=True)
def _find_anchors(plan, step, total, out):  # type: ignore[no-untyped-def]
    """out[1] = the anchor steps in the episodes out[0] that the quanta fall on; the fourth row of `out`, if there is
    one, their probabilities as float64."""
    count, episodes, within = out.shape[1], plan[EPISODES], plan[WITHIN]
    counts = _int64s(plan[COUNTS], episodes + 1)
    # Not `view`, which takes Numba seconds to compile.
    probability = carray(pointer(out.ctypes.data + 3 * 8 * count), (count,), np.float64)
    if episodes >= _CACHED_EPISODES:
        for i in range(count):
            prefetch(plan[COUNTS] + 8 * out[0, i])
            prefetch(plan[OFFSETS] + 8 * out[0, i])
            if plan[IDS]:
                prefetch(plan[IDS] + 8 * out[0, i])
            if plan[FIRST]:
                prefetch(plan[FIRST] + 8 * out[0, i])
    if within == WITHIN_DRAWN:
        draw_words(uint64(plan[SEED]), uint64(DOMAIN_ANCHOR), step, out[2])
    if within == WITHIN_OFFSET:
        for i in range(count):
            out[1, i] = out[2, i]
    else:
        for i in range(count):
            episode = out[0, i]
            int_weight, anchors = _int_weight_of(plan, episode), counts[episode + 1] - counts[episode]
            if within == WITHIN_QUOTIENT:
                number = out[2, i] // (int_weight // anchors)
            else:
                high, low = multiply_high(uint64(out[2, i]), uint64(anchors))
                number = np.int64(high)
                if low < uint64(anchors):
                    number = below(uint64(plan[SEED]), uint64(DOMAIN_ANCHOR), step, i, anchors)
            out[1, i] = number
            if out.shape[0] > 3:
                probability[i] = np.float64(int_weight) / np.float64(total) / np.float64(anchors)
    if plan[WORDS]:
        # The arrays' ends are not known here; nothing beyond them is read.
        words = carray(pointer(plan[WORDS]), (1 << 40,), np.uint64)
        ranks, first = _int64s(plan[RANKS], 1 << 40), _int64s(plan[FIRST], episodes)
        offsets = _int64s(plan[OFFSETS], episodes + 1)
        for i in range(count):
            episode = out[0, i]
            begin, length = first[episode], offsets[episode + 1] - offsets[episode]
            number = rank(words, ranks, begin) + out[1, i]
            out[1, i] = select(words, ranks, begin, begin + length, number) - begin
    elif plan[STRIDE] > 1 or plan[ORIGIN]:
        for i in range(count):
            out[1, i] = plan[ORIGIN] + out[1, i] * plan[STRIDE]


@njit(nogil=True, cache=True)
def _cut_windows(plan, step, out):  # type: ignore[no-untyped-def]
    """out[0:3] = episode id, first step and length of the windows of anchors out[1] in episodes out[0]."""
    count, context, anchor = out.shape[1], plan[CONTEXT], plan[ANCHOR]
    offsets = _int64s(plan[OFFSETS], plan[EPISODES] + 1)
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
        draw_below(uint64(plan[SEED]), uint64(DOMAIN_PLACE), step, context, out[2])
        for i in range(count):
            episode, begin = out[0, i], out[1, i] - out[2, i]
            length = offsets[episode + 1] - offsets[episode]
            if plan[SHORT]:
                out[1, i] = max(0, begin)
                out[2, i] = min(length, begin + context) - out[1, i]
            else:
                out[1, i] = min(max(0, begin), length - context)
                out[2, i] = context
    if plan[IDS]:
        ids = _int64s(plan[IDS], plan[EPISODES])
        for i in range(count):
            out[0, i] = ids[out[0, i]]


@njit(nogil=True, cache=True)
def draw_windows(plan, step, out):  # type: ignore[no-untyped-def]
    """The windows that a plan draws for the slots 0 to B - 1 of `step`, B >= 1.

    out, int64 [3 or 4, B]: episode ids, first steps, lengths, and probabilities (float64) where there is a fourth row.
    """
    total = _int64s(plan[TOTAL], 1)[0]
    draw_below(uint64(plan[SEED]), uint64(plan[DOMAIN]), step, total, out[1])
    _find_episodes(plan, out)
    if plan[DISTINCT]:
        _make_distinct(plan, step, total, out)
    _find_anchors(plan, step, total, out)
    _cut_windows(plan, step, out)


@njit(nogil=True, cache=True)
def windows_of_anchors(plan, step, out):  # type: ignore[no-untyped-def]
    """The windows of the anchors with the numbers out[1], in slots 0 to B - 1 of `step`; out as for draw_windows."""
    _find_episodes(plan, out)
    _find_anchors(plan, step, _int64s(plan[TOTAL], 1)[0], out)
    _cut_windows(plan, step, out)
