"""PrefixTable: episodes' quanta laid end to end, to be drawn from in constant time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.selection.windows import Float64Array, Int64Array

_MAX_EPISODES = (1 << 32) - 1
#: A table may have so many guide entries, if it has fewer episodes.
_SMALL_GUIDE = 256


class PrefixTable:
    """Running sums, and a guide table over them (Chen and Asau, 1974).

    The guide gives the episode of every 2^shift-th quantum, so that finding one is a step or two; it takes four bytes
    an episode at most.

    Args:
        prefix: int64 [k + 1], quanta before each episode, from 0; at least one quantum in all.

    Raises:
        InvalidArgumentError: more than 2^32 - 1 episodes.
    """

    def __init__(self, prefix: Int64Array) -> None:
        from gear_data.kernels.cpu.windows import fill_guide

        if len(prefix) - 1 > _MAX_EPISODES:
            raise InvalidArgumentError(f"{len(prefix) - 1} episodes are more than the {_MAX_EPISODES} of a table")
        self.prefix = prefix
        last, most = int(prefix[-1]) - 1, max(len(prefix) - 1, _SMALL_GUIDE)
        self._shift = max(0, last.bit_length() - most.bit_length() + 1)
        self._guide = np.empty((last >> self._shift) + 2, np.uint32)
        fill_guide(prefix, self._shift, self._guide)

    def shares(self) -> Float64Array:
        """float64 [k], 1 in sum: each episode's part of the quanta."""
        return np.diff(self.prefix) / self.prefix[-1]  # type: ignore[no-any-return]

    def plan_fields(self) -> dict[int, int | npt.NDArray[Any]]:
        """See `gear_data.selection.window_sampler.IntWeightTable`."""
        from gear_data.kernels.cpu import windows as kernels

        return {
            kernels.TOTAL: self.prefix[-1:],
            kernels.PREFIX: self.prefix,
            kernels.GUIDE: self._guide,
            kernels.SHIFT: self._shift,
        }
