"""Runs of episodes that follow each other in a dataset, and flags of their steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of


def adjacent_runs(first_steps: Int64Array, lengths: Int64Array) -> Iterator[tuple[int, int, int]]:
    """Yields (first episode, last episode, first step) of each run of adjacent episodes, the last one excluded.

    Args:
        first_steps: int64 [k], ascending: the first step of each episode in the whole dataset.
        lengths: int64 [k], steps of each episode.
    """
    breaks = np.flatnonzero(first_steps[1:] != first_steps[:-1] + lengths[:-1]) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(first_steps)]):
        yield begin, end, int(first_steps[begin])


def flags_in_runs(
    first_steps: Int64Array, lengths: Int64Array, flags: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yields (first step, flags) of each run of adjacent episodes.

    Args:
        first_steps, lengths: see `adjacent_runs`.
        flags: bool [sum of lengths], of the steps of all episodes, concatenated.
    """
    offsets = offsets_of(lengths)
    for begin, end, first in adjacent_runs(first_steps, lengths):
        yield first, flags[offsets[begin] : offsets[end]]
