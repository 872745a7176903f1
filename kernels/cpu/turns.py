"""Turns of parts, dealt evenly.

The method is Tijdeman's "The chairman assignment problem" (Discrete Mathematics 32, 1980).
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
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
