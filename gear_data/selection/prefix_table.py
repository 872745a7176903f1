"""PrefixTable: integer weights as running sums, searched in constant time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.selection.windows import Float64Array, Int64Array

_MAX_EPISODES = (1 << 32) - 1
#: A table of fewer episodes has up to this many guide entries.
_SMALL_GUIDE = 256


class PrefixTable:
    """Running sums, and a guide table over them (Chen and Asau, 1974).

    The guide gives the episode of every 2^shift-th point, so a search takes one or two steps. The guide takes at most
    four bytes for each episode.

    Args:
        prefix: int64 [k + 1], the integer weight before each episode, from 0; the total is at least 1.

    Raises:
        InvalidArgumentError: more than 2^32 - 1 episodes.
    """

    def __init__(self, prefix: Int64Array) -> None:
        if len(prefix) - 1 > _MAX_EPISODES:
            raise InvalidArgumentError(
                f"the dataset has {len(prefix) - 1} episodes, more than the {_MAX_EPISODES} that a sampler supports",
                hint="select fewer episodes",
            )
        self.prefix = prefix
        last, entries = int(prefix[-1]) - 1, max(len(prefix) - 1, _SMALL_GUIDE)
        self._shift = max(0, last.bit_length() - entries.bit_length() + 1)
        self._guide = np.empty((last >> self._shift) + 2, np.uint32)
        cpu.windows.fill_guide(prefix, self._shift, self._guide)

    def shares(self) -> Float64Array:
        """Returns each episode's share of the total weight, float64 [k], with a sum of 1."""
        return np.diff(self.prefix) / self.prefix[-1]  # type: ignore[no-any-return]

    def plan_fields(self) -> dict[str, int | npt.NDArray[Any]]:
        """See `gear_data.selection.window_sampler.IntWeightTable`."""
        return {"total": self.prefix[-1:], "prefix": self.prefix, "guide": self._guide, "shift": self._shift}
