"""Windows: (episode, first step, length), and the rule that cuts them from episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, unknown_name

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

#: Where in its window an anchor step stands.
ANCHORS = ("start", "end", "random")


# Not frozen, like all values that are made for every batch: a frozen one takes several times as long to make, since its
# fields are set through `object.__setattr__`. Nothing changes them.
@dataclass(slots=True)
class Windows:
    """B windows, each array [B].

    Attributes:
        episode_id: int64, the episode.
        start: int64, its first step in the episode.
        length: int64, valid steps, at most the context: less where the episode ends (or begins) inside it.
        probability: float64, of drawing the window's anchor step in one slot (the first draw, without replacement).
            Its inverse, over the number of anchors, is the importance weight. None where no weights drew it.
    """

    episode_id: Int64Array
    start: Int64Array
    length: Int64Array
    probability: Float64Array | None = None

    def __len__(self) -> int:
        return len(self.episode_id)

    def __getitem__(self, rows: slice | Int64Array) -> Windows:
        probability = None if self.probability is None else self.probability[rows]
        return Windows(self.episode_id[rows], self.start[rows], self.length[rows], probability)


@dataclass(frozen=True)
class WindowRule:
    """Which steps of an episode of T steps are anchors, and the window of each.

    Attributes:
        context: longest window, in steps.
        stride: every stride-th step of an episode is an anchor.
        anchor: the window of anchor a: `start`, steps a to min(a + context, T); `end`, steps max(0, a + 1 - context) to
            a + 1; `random`, steps a - j to a - j + context cut to the episode, j drawn from 0 to context - 1.
        short: whether a window may have fewer steps than the context. If not: `start` has anchors up to T - context,
            `end` from context - 1 on, `random` moves a window into the episode; episodes shorter than the context have
            no anchor.

    Raises:
        InvalidArgumentError: context or stride below 1.
        UnknownNameError: no such anchor.
    """

    context: int
    stride: int = 1
    anchor: str = "start"
    short: bool = True

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("stride", self.stride)):
            if value < 1:
                raise InvalidArgumentError(f"{name} is {value}, not 1 or more")
        if self.anchor not in ANCHORS:
            raise unknown_name("anchor", self.anchor, ANCHORS)

    @property
    def first_anchor(self) -> int:
        """The first anchor step of an episode."""
        return self.context - 1 if self.anchor == "end" and not self.short else 0

    def every_step(self) -> bool:
        """Whether all steps of all episodes are anchors."""
        return self.stride == 1 and self.short

    def anchor_counts(self, lengths: Int64Array) -> Int64Array:
        """int64 [k]: anchors of episodes of these lengths, int64 [k]."""
        if self.short:
            return -(-lengths // self.stride)
        last = lengths if self.anchor == "random" else lengths - self.context + 1
        return np.where(lengths >= self.context, -(-last // self.stride), 0)

    def identity(self) -> dict[str, Any]:
        """JSON-able: what the windows of given steps depend on."""
        return {"context": self.context, "stride": self.stride, "anchor": self.anchor, "short_windows": self.short}
