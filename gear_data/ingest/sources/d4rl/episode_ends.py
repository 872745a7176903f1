"""Where episodes of flat steps end: by flags, by observations that do not follow, by a stated length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from gear_data.errors import UnknownFormatError

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EndRule:
    """What says where the episodes of D4RL files end, besides `terminals`: the first of these that is there.

    Attributes:
        terminals, timeouts, following: names of datasets: end flags, and observations after each step.
        longest: an episode ends after so many steps.
    """

    terminals: str
    timeouts: str | None
    following: str | None
    longest: int | None

    @property
    def by_flags(self) -> bool:
        """Whether they can be told without reading observations."""
        return self.timeouts is not None or self.following is None

    def check(self, file: str) -> None:
        """Raises UnknownFormatError where nothing says where an episode without a terminal ends."""
        if self.timeouts is None and self.following is None and self.longest is None:
            raise UnknownFormatError(
                "neither 'timeouts' nor 'next_observations' says where episodes end",
                file=file,
                hint="say after how many steps the environment stopped them: --max-episode-steps N; or add a "
                "'timeouts' dataset, true at each episode's last step that is not terminal",
            )

    def flags(self, file: h5py.File, start: int, stop: int, age: int) -> BoolArray:
        """bool [stop - start]: whether a step is the last of its episode, as far as flags and lengths say.

        Args:
            age: steps that the first row's episode had before it.
        """
        ends: BoolArray = file[self.terminals][start:stop].reshape(-1).astype(np.bool_)
        if self.timeouts is not None:
            ends |= file[self.timeouts][start:stop].reshape(-1).astype(np.bool_)
        elif self.following is None and self.longest is not None:
            steps = np.arange(stop - start)
            begins = np.concatenate([[True], ends[:-1]])
            since = steps - np.maximum.accumulate(np.where(begins, steps, 0))
            first = int(np.argmax(ends)) + 1 if ends.any() else len(ends)
            since[:first] += age
            ends |= (since + 1) % self.longest == 0
        return ends


def ages_after(ends: BoolArray, age: int) -> int:
    """Steps since the last end, after these rows; `age` is as in `EndRule.flags`."""
    if not ends.any():
        return age + len(ends)
    return int(np.argmax(ends[::-1]))


def differs(following: npt.NDArray[Any], observations: npt.NDArray[Any]) -> BoolArray:
    """bool [n]: whether rows differ; NaN is the same as NaN."""
    different = np.asarray(following != observations)
    if following.dtype.kind == "f" and different.any():
        different &= ~((following != following) & (observations != observations))
    return np.asarray(different.any(axis=tuple(range(1, different.ndim))))
