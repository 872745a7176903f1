"""Rule that finds the ends of D4RL's episodes.

Flags, jumps between observations, or a stated length mark the ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import h5py
import numpy as np
import numpy.typing as npt

from gear_data.errors import UnknownFormatError

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EndRule:
    """The rule that finds the episodes' ends.

    Terminal steps always end an episode. For other ends, the first of `timeouts`, `dones`, `next_observations` and
    `max_steps` that is not None applies.

    Attributes:
        terminals: dataset of the flags of terminal steps.
        timeouts: dataset of the flags of steps at which an episode was truncated.
        dones: dataset of the flags of the last steps, terminal or not.
        next_observations: dataset of the observations after each step.
        max_steps: an episode ends after this number of steps.
    """

    terminals: str
    timeouts: str | None
    dones: str | None
    next_observations: str | None
    max_steps: int | None

    @property
    def by_flags(self) -> bool:
        """Whether ends can be found without reading observations."""
        return self.end_flags is not None or self.next_observations is None

    @property
    def end_flags(self) -> str | None:
        """The dataset that marks the ends of episodes without a terminal step."""
        return self.timeouts or self.dones

    def check(self, file: str) -> None:
        """Checks that the rule finds ends of episodes without a terminal step.

        Raises UnknownFormatError otherwise.
        """
        if self.by_flags and self.end_flags is None and self.max_steps is None:
            raise UnknownFormatError(
                "neither 'timeouts' nor 'next_observations' says where episodes end",
                file=file,
                hint="give the environment's limit of steps with --max-episode-steps N "
                "(episodes=EpisodeBoundaries(max_episode_steps=N)); or add a 'timeouts' dataset "
                "that is true at the last step of each truncated episode",
            )

    def flags(self, file: h5py.File, start: int, stop: int, age: int) -> BoolArray:
        """Returns bool [stop - start], whether each step ends its episode.

        Only flags and lengths count, not observations.

        Args:
            file: to read from.
            start, stop: rows [start, stop).
            age: number of steps that the first row's episode has before it.
        """
        ends: BoolArray = file[self.terminals][start:stop].reshape(-1).astype(np.bool_)
        if self.end_flags is not None:
            ends |= file[self.end_flags][start:stop].reshape(-1).astype(np.bool_)
        elif self.next_observations is None and self.max_steps is not None:
            steps = np.arange(stop - start)
            begins = np.concatenate([[True], ends[:-1]])
            since_begin = steps - np.maximum.accumulate(np.where(begins, steps, 0))
            first_end = int(np.argmax(ends)) + 1 if ends.any() else len(ends)
            since_begin[:first_end] += age
            ends |= (since_begin + 1) % self.max_steps == 0
        return ends


def age_after(ends: BoolArray, age: int) -> int:
    """Returns the number of steps since the last end, after these rows.

    `age` is as in `EndRule.flags`.
    """
    if not ends.any():
        return age + len(ends)
    return int(np.argmax(ends[::-1]))
