"""Turns of parts, dealt evenly.

The method is Tijdeman's "The chairman assignment problem" (Discrete Mathematics 32, 1980).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import cached_njit

#: The amount of one turn, in `deal_steps`.
TURN = 1 << 36


@cached_njit
def deal(shares, order, before):  # type: ignore[no-untyped-def]
    """Deals one cycle: part i gets shares[i] turns, evenly spread.

    Args:
        shares: int64 [m], turns of each part; the sum is at most 2^20.
        order: int64 [sum of shares], receives the part that has each turn.
        before: int64 [sum of shares], receives the part's turns before that turn.
    """
    length, slack = len(order), 2 * len(shares) - 2
    dealt = np.zeros(len(shares), np.int64)
    for t in range(length):
        best, least = 0, np.inf
        for i in range(len(shares)):
            # The turns that part i is owed after this turn, times length * slack. Parts that are owed 1 / slack or more
            # are eligible. The turn goes to the eligible part that would first be owed too much.
            owed = (shares[i] * (t + 1) - dealt[i] * length) * slack
            if owed >= length:
                urgency = ((slack - 1) * length - owed) / shares[i]
                if urgency < least:
                    best, least = i, urgency
        order[t] = best
        before[t] = dealt[best]
        dealt[best] += 1


@cached_njit
def deal_steps(shares, per_step, owed, start, before):  # type: ignore[no-untyped-def]
    """Deals the turns of several steps. Each turn goes to the part that is owed most.

    Args:
        shares: int64 [steps, m], each part's share of a turn in units of 1 / TURN; the sum of a row is TURN.
        per_step: turns of a step.
        owed: int64 [m], what each part is owed before the first step, in the same units; changed in place.
        start: int64 [m], turns of each part before the first step.
        before: int64 [steps, m], receives the turns of each part after each step.
    """
    parts = len(owed)
    dealt = start.copy()
    for step in range(len(shares)):
        for part in range(parts):
            owed[part] += shares[step, part] * per_step
        for _ in range(per_step):
            best = 0
            for part in range(1, parts):
                if owed[part] > owed[best]:
                    best = part
            owed[best] -= TURN
            dealt[best] += 1
        for part in range(parts):
            before[step, part] = dealt[part]


@njit(nogil=True)  # type: ignore[untyped-decorator]
def rows_by_part(part, parts):  # type: ignore[no-untyped-def]
    """Returns the rows of each part, one part after another.

    Args:
        part: int64 [B], the part of each row.
        parts: number of parts.

    Returns:
        int64 [B], the rows, ascending in each part; and int64 [parts + 1], the position of each part's first row.
    """
    bounds = np.zeros(parts + 1, np.int64)
    for i in range(len(part)):
        bounds[part[i] + 1] += 1
    for i in range(parts):
        bounds[i + 1] += bounds[i]
    rows, taken = np.empty(len(part), np.int64), bounds.copy()
    for i in range(len(part)):
        rows[taken[part[i]]] = i
        taken[part[i]] += 1
    return rows, bounds
