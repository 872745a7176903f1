"""The goals of a batch: current, later or random steps, in one `nogil` call.

Random steps are windows that `draw_windows` draws. All probabilities are integers, so the goals are the same on every
machine.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, uint64

from gear_data.kernels.cpu.native import cached_njit, int64s, pointer
from gear_data.kernels.cpu.random import below, multiply_high, philox
from gear_data.kernels.cpu.windows import draw_windows
from gear_data.kernels.goal_plan import GOAL_PLAN, PROBABILITY_BITS

_SHIFT = uint64(64 - PROBABILITY_BITS)
_MASK32 = uint64(0xFFFFFFFF)
_SHIFT32 = uint64(32)


@cached_njit
def _draw_words(seed, domain, step, out):  # type: ignore[no-untyped-def]
    """Sets out[0, i] = the bits of `word64` for slot i, and out[1, i] = 64 more.

    LLVM vectorises this loop.
    """
    for i in range(out.shape[1]):
        c0, c1, c2, c3 = philox(
            uint64(i) & _MASK32,
            uint64(step) & _MASK32,
            uint64(step) >> _SHIFT32,
            uint64(domain) << uint64(24),
            uint64(seed) & _MASK32,
            uint64(seed) >> _SHIFT32,
        )
        out[0, i] = np.int64((c1 << _SHIFT32) | c0)
        out[1, i] = np.int64((c3 << _SHIFT32) | c2)


@njit(nogil=True, cache=True, inline="always")
def _offset(survivors, number):  # type: ignore[no-untyped-def]
    """Returns 1 + how many survivors are above `number`. They descend."""
    low, size = 0, len(survivors)
    while size > 0:
        half = (size + 1) >> 1
        if survivors[low + half - 1] > number:
            low += half
            size -= half
        else:
            size = half - 1
    return low + 1


@njit(nogil=True, cache=True, inline="always")
def _below(word, seed, domain, step, slot, bound):  # type: ignore[no-untyped-def]
    """Returns `below(seed, domain, step, slot, bound)`, given the word of attempt 0."""
    high, low = multiply_high(word, uint64(bound))
    return np.int64(high) if low >= uint64(bound) else below(seed, domain, step, slot, bound)


@cached_njit
def _draw(plan, step, episode, current, goal, out):  # type: ignore[no-untyped-def]
    """Draws one kind of goals to out[:, goal], see `draw_goals`.

    With subgoals, out[:, goal - 1] and out[:, goal + 1] receive the low-level goals and the targets.
    """
    record = carray(pointer(plan), (1,), GOAL_PLAN)[0]
    count, seed, domain = len(episode), uint64(record.seed), uint64(record.domain)
    below_current, below_random = record.current, record.current_or_trajectory
    final, subgoal, geometric = record.final, record.subgoal, record.survivors
    lengths, final_rows = int64s(record.lengths, 1 << 40), int64s(record.final_rows, 1 << 40)
    survivors = int64s(record.survivors, record.longest)
    has_finals = final and record.final_rows
    words = np.empty((2, count), np.int64)
    _draw_words(seed, domain, step, words)
    drawn = np.empty((3, count if record.random else 0), np.int64)
    if record.random:
        draw_windows(record.random, step, drawn)
    for i in range(count):
        now, chosen = current[i], episode[i]
        last = lengths[chosen] - 1
        if has_finals and final_rows[chosen] >= 0:
            last += 1
        place, number = uint64(words[0, i]), np.int64(uint64(words[1, i]) >> _SHIFT)
        reached = now
        if number >= below_random:
            chosen, reached = drawn[0, i], drawn[1, i]
        elif number >= below_current:
            first = min(now + 1, last)
            if geometric:
                reached = min(now + _offset(survivors, np.int64(place >> _SHIFT)), last)
            elif final:
                reached = first + _below(place, seed, domain, step, i, last - first + 1)
            elif first < last:
                # The first and the last step get half of the probability of the steps between.
                reached = first + ((_below(place, seed, domain, step, i, 2 * (last - first)) + 1) >> 1)
            else:
                reached = last
        out[0, goal, i], out[1, goal, i] = chosen, reached
        if subgoal:
            nearer = min(now + subgoal, last)
            out[0, goal - 1, i], out[1, goal - 1, i] = episode[i], nearer
            out[0, goal + 1, i] = episode[i]
            out[1, goal + 1, i] = min(nearer, reached) if number < below_random else nearer


@cached_njit
def draw_goals(value, actor, step, episode, current, out):  # type: ignore[no-untyped-def]
    """Draws the goals of slots 0 to B - 1 of `step`.

    Args:
        value, actor: addresses of GOAL_PLANs.
        step: the batch's step.
        episode, current: int64 [B], each slot's episode, and its current step in the episode.
        out: int64 [2, 2 or 4, B], receives the goals' episodes (out[0]) and steps (out[1]). out[:, 0] are value goals.
            out[:, 1] are actor goals. With subgoals of the actor, out[:, 1] are low-level goals, `subgoal` steps after
            the current steps; out[:, 2] are high-level goals, and out[:, 3] their targets, at most as far.
    """
    if len(episode):
        _draw(value, step, episode, current, 0, out)
        _draw(actor, step, episode, current, 1 if out.shape[1] == 2 else 2, out)
