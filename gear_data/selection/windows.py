"""Windows: (episode, first step, length), and the steps they can be drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """B windows, each array int64 [B].

    Attributes:
        episode_id: the episode, 0 to n - 1 in source order.
        start: its first step in the episode.
        length: valid steps, at most the context: less where the episode ends sooner.
    """

    episode_id: Int64Array
    start: Int64Array
    length: Int64Array

    def __len__(self) -> int:
        return len(self.episode_id)

    def __getitem__(self, rows: slice) -> Windows:
        return Windows(self.episode_id[rows], self.start[rows], self.length[rows])


@dataclass(frozen=True)
class StepTable:
    """The steps that windows start at: all steps of all episodes, numbered through.

    Attributes:
        offsets: int64 [n + 1], episode e is steps offsets[e] to offsets[e + 1].
        context: longest window, in steps.
    """

    offsets: Int64Array
    context: int

    @property
    def num_steps(self) -> int:
        return int(self.offsets[-1])

    def windows(self, positions: Int64Array) -> Windows:
        """The windows that start at these global steps."""
        from gear_data.kernels.random import locate

        episode = np.empty(len(positions), np.int64)
        start = np.empty(len(positions), np.int64)
        length = np.empty(len(positions), np.int64)
        locate(positions, self.offsets, self.context, episode, start, length)
        return Windows(episode, start, length)
