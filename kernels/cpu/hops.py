"""Hops: the steps from a step to its n-th next state, or to the episode's end.

An episode of T steps has the states 0 to T. State T is the final observation. It is the next state of the last step if
it is stored, or if the last step is terminal: then no value is read from the state. Else the states end at T - 1. The
hop of step t is the number of steps from t to its next state: at most n, and at most the number of steps up to the
first terminal one. It is 0 for a last step without a next state.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.native import pointer


@njit(nogil=True)  # type: ignore[untyped-decorator]
def hop_of(flags, step, total, most, has_final):  # type: ignore[no-untyped-def]
    """Returns (hop, whether the last step of the hop is terminal).

    Args:
        flags: address of the uint8 flag of `step`, and of the flags of the steps after it.
        step: the step in its episode.
        total: steps of the episode.
        most: n, the longest hop.
        has_final: whether the episode's final observation is a next state.
    """
    left = min(most, total - step)
    ended = carray(pointer(flags), (left,), np.uint8)
    for j in range(left):
        if ended[j]:
            return np.int64(j + 1), True
    if step + left == total and not has_final:
        return np.int64(left - 1), False
    return np.int64(left), False
