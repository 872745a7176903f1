"""Windows: (episode, first step, length), and the rule that cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.words import Anchor

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

ANCHORS: tuple[Anchor, ...] = get_args(Anchor)


@dataclass(slots=True)
class Packing:
    """The places of n windows in rows, each filled with several windows.

    Attributes:
        steps: steps of a row.
        rows: number of rows.
        place: int64 [n], ascending: the first step of each window, counted over the steps of all rows.
        skipped: int64 [n], the steps of each window that an earlier row has; None: windows are whole.
        sizes: int64 [n], the tokens of each window, if its steps have unlike numbers of tokens; None: they have not.
    """

    steps: int
    rows: int
    place: Int64Array
    skipped: Int64Array | None = None
    sizes: Int64Array | None = None

    def __getitem__(self, windows: slice | Int64Array) -> Packing:
        skipped = None if self.skipped is None else self.skipped[windows]
        sizes = None if self.sizes is None else self.sizes[windows]
        return Packing(self.steps, self.rows, self.place[windows], skipped, sizes)

    def ends(self, length: Int64Array) -> Int64Array:
        """Returns the steps of each row that its windows hold, int64 [rows]. length: int64 [n]."""
        found = np.zeros(self.rows, np.int64)
        row = self.place // self.steps
        # Windows are in order: the last of a row is stored last.
        found[row] = self.place + length - row * self.steps
        return found


# Not frozen, like all dataclasses that are built for every batch. Building a frozen dataclass takes several times as
# long, because its fields are set through `object.__setattr__`. Treat the fields as constants after the window source
# has set `source`.
@dataclass(slots=True)
class Windows:
    """B windows, each array [B].

    Attributes:
        episode_id: int64, the episode.
        start: int64, the window's first step in the episode.
        length: int64, valid steps, at most the context; fewer if the episode ends or begins inside the window.
        probability: float64, the probability of drawing the window's anchor step in one slot (without replacement: in
            the first slot). 1 / (probability * number of anchors) is the importance weight. None: the windows were
            drawn without weights.
        importance: float64, the importance weight (N p)^-beta of a sampler with `beta`; None without.
        source: the number of the windows' dataset in a mixture, 0 without a mixture; int64 [B] if the windows are of
            several datasets.
        goals: int64 [2, goals, B], the goals' episodes and steps, see `gear_data.selection.goals`. None: no goals.
        row: the row of the global batch that the first window is; of packed windows, the number of windows before it.
        packing: the places of the windows in packed rows; None: each window is a row.
    """

    episode_id: Int64Array
    start: Int64Array
    length: Int64Array
    probability: Float64Array | None = None
    importance: Float64Array | None = None
    source: int | Int64Array = 0
    goals: Int64Array | None = None
    row: int = 0
    packing: Packing | None = None

    def __len__(self) -> int:
        return len(self.episode_id)

    @property
    def dataset(self) -> int:
        """The number of the windows' dataset; 0 if they are of several datasets, which then share one collector."""
        return self.source if isinstance(self.source, int) else 0

    def episode_steps(self, lengths: Sequence[Int64Array]) -> Int64Array:
        """Returns the steps of each window's episode, int64 [B].

        lengths: for each dataset, the steps of its episodes. If there is one, all windows are of it.
        """
        source = 0 if len(lengths) == 1 else self.source
        if isinstance(source, int):
            return lengths[source][self.episode_id]
        steps = np.empty(len(self), np.int64)
        for number, own in enumerate(lengths):
            rows = source == number
            steps[rows] = own[self.episode_id[rows]]
        return steps

    def __getitem__(self, rows: slice | Int64Array) -> Windows:
        probability = None if self.probability is None else self.probability[rows]
        importance = None if self.importance is None else self.importance[rows]
        source = self.source if isinstance(self.source, int) else self.source[rows]
        goals = None if self.goals is None else self.goals[:, :, rows]
        row = self.row + (rows.start or 0) if isinstance(rows, slice) else self.row
        packing = None if self.packing is None else self.packing[rows]
        return Windows(
            self.episode_id[rows], self.start[rows], self.length[rows], probability, importance, source, goals, row,
            packing,
        )  # fmt: skip

    def of_rows(self, first: int, last: int) -> Windows:
        """Returns the windows of the rows first to last - 1."""
        packing = self.packing
        if packing is None:
            return self[first:last]
        begin, end = np.searchsorted(packing.place, (first * packing.steps, last * packing.steps)).tolist()
        part = self[begin:end]
        part.packing = Packing(
            packing.steps,
            last - first,
            packing.place[begin:end] - first * packing.steps,
            None if packing.skipped is None else packing.skipped[begin:end],
            None if packing.sizes is None else packing.sizes[begin:end],
        )
        return part


@dataclass(frozen=True)
class WindowRule:
    """The rule that selects anchor steps and cuts their windows.

    T is the number of steps of an episode.

    Attributes:
        context: longest window, in steps.
        stride: every stride-th step of an episode is an anchor.
        anchor: the window of anchor a. `start`: steps a to min(a + context, T). `end`: steps max(0, a + 1 - context) to
            a + 1. `random`: steps a - j to a - j + context, cut to the episode; j is drawn from 0 to context - 1.
        short: whether a window may have fewer steps than the context. If not, `start` has anchors up to T - context,
            `end` has anchors from context - 1 on, and `random` moves a window into the episode. Episodes shorter than
            the context then have no anchor.

    Raises:
        InvalidArgumentError: context or stride below 1.
        UnknownNameError: unknown anchor.
    """

    context: int
    stride: int = 1
    anchor: Anchor = "start"
    short: bool = True

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("stride", self.stride)):
            if value < 1:
                raise InvalidArgumentError(f"{name} is {value}; it must be at least 1")
        if self.anchor not in ANCHORS:
            raise unknown_name("anchor", self.anchor, ANCHORS)

    @property
    def first_anchor(self) -> int:
        """The first step of an episode that can be an anchor."""
        return self.context - 1 if self.anchor == "end" and not self.short else 0

    def all_steps_are_anchors(self) -> bool:
        """Returns whether every step of every episode is an anchor."""
        return self.stride == 1 and self.short

    def anchor_counts(self, lengths: Int64Array) -> Int64Array:
        """Returns the number of anchors of episodes of these lengths, int64 [k]."""
        if self.short:
            return -(-lengths // self.stride)
        last = lengths if self.anchor == "random" else lengths - self.context + 1
        return np.where(lengths >= self.context, -(-last // self.stride), 0)

    def identity(self) -> dict[str, Any]:
        """Returns the fields of the rule, JSON-able."""
        return {"context": self.context, "stride": self.stride, "anchor": self.anchor, "short_windows": self.short}
