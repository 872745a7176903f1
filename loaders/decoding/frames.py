"""Frames: the steps of variable-length columns that a batch of transitions has.

A row has some steps around its own step, and the same steps around its next state. Most steps occur in several stacks,
and each is read and decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.selection.windows import Int64Array, Windows


@dataclass(frozen=True)
class Frames:
    """The steps of a batch of B transitions.

    Each row has `width` steps, and as many for its next state.

    Attributes:
        windows: the distinct steps, as windows of one step.
        index: int64 [2, B, width], the position in `windows` of each step; -1: nothing is there.
        inside: bool [2, B, width], whether the step is in the episode.
    """

    windows: Windows
    index: Int64Array
    inside: npt.NDArray[np.bool_]

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Spreads the values of the distinct steps to [2, B, width, ...].

        values: [n, ...]. There are zeros where nothing is.
        """
        whole = np.zeros((*self.index.shape, *values.shape[1:]), values.dtype)
        there = self.index >= 0
        whole[there] = values[self.index[there]]
        return whole

    def spread_list(self, values: list[Any]) -> list[list[list[Any]]]:
        """Spreads the values of the distinct steps to lists [2][B][width].

        None is where nothing is.
        """
        padded = [*values, None]
        return [[[padded[i] for i in row] for row in half] for half in self.index.tolist()]


def frames_of(windows: Windows, total: Int64Array, hops: Int64Array, offsets: Sequence[int], *, repeat: bool) -> Frames:
    """Returns the frames of a batch.

    Args:
        windows: B windows, at least one.
        total: int64 [B], steps of each window's episode.
        hops: int64 [B], steps from each window's first step to its next state; 0: there is none.
        offsets: steps relative to the row's step.
        repeat: whether the nearest step of the episode stands for a step outside of it.
    """
    rows = np.stack([windows.start, windows.start + hops])
    exists = np.stack([np.ones(len(windows), np.bool_), (hops > 0) & (rows[1] < total)])
    steps = rows[..., None] + np.asarray(offsets, np.int64)
    inside = (steps >= 0) & (steps < total[:, None]) & exists[..., None]
    there = np.broadcast_to(exists[..., None], steps.shape) if repeat else inside
    steps = np.clip(steps, 0, total[:, None] - 1)
    row = np.broadcast_to(np.arange(len(windows))[:, None], steps.shape)[there]
    source = np.broadcast_to(np.asarray(windows.source, np.int64), len(windows))
    distinct, inverse = np.unique(
        np.stack([source[row], windows.episode_id[row], steps[there]]), axis=1, return_inverse=True
    )
    index = np.full(steps.shape, -1, np.int64)
    index[there] = inverse.reshape(-1)
    of = windows.source if isinstance(windows.source, int) else np.ascontiguousarray(distinct[0])
    one = np.ones(distinct.shape[1], np.int64)
    found = Windows(np.ascontiguousarray(distinct[1]), np.ascontiguousarray(distinct[2]), one, source=of)
    return Frames(found, index, inside)
