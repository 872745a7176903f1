"""Dealing turns: Tijdeman's chairman assignment ("The chairman assignment problem", Discrete Mathematics 32, 1980)."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def deal(shares, order, before):  # type: ignore[no-untyped-def]
    """Deals one cycle: part i gets shares[i] of its turns, evenly spread.

    Args:
        shares: int64 [m], turns of each part; at most 2^20 in all.
        order: int64 [sum of shares], filled with whose turn each is.
        before: int64 [sum of shares], filled with how many turns that part had before.
    """
    length, slack = len(order), 2 * len(shares) - 2
    had = np.zeros(len(shares), np.int64)
    for t in range(length):
        best, least = 0, np.inf
        for i in range(len(shares)):
            # What part i is owed after this turn, times length * slack: those owed 1 / slack or more may come, and of
            # them the one that would be owed too much the soonest does.
            owed = (shares[i] * (t + 1) - had[i] * length) * slack
            if owed >= length:
                urgency = ((slack - 1) * length - owed) / shares[i]
                if urgency < least:
                    best, least = i, urgency
        order[t] = best
        before[t] = had[best]
        had[best] += 1
