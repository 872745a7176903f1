"""A run of whole episodes on its way to disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Position(NamedTuple):
    """A place in a source from which reading can start again; positions are ordered as a source's episodes are."""

    file: int
    row: int


#: The position of a source's first episode.
BEGIN = Position(0, 0)

#: The position after a source's last episode.
END = Position(1 << 62, 0)


@dataclass(frozen=True)
class EpisodeBlock:
    """Whole episodes, column by column: the steps of all of them one after another.

    Attributes:
        position: where in the source the block starts; a source asked to start there yields the same episodes.
        lengths: int64 [n], steps of each episode, all positive.
        columns: name -> [sum(lengths), *shape], C-contiguous; booleans as bool. Those of variable length are in
            `variable`.
        sources: the file (or other name) each episode came from.
        rows: int64 [n], the source row of each episode (of its first step where a row is a step).
        finals: name -> [has_final.sum(), *shape], final observations of the episodes that have one.
        has_final: bool [n].
        metadata: name -> n values, the source's own facts about each episode.
        variable: name -> `large_string` or `large_binary` array of sum(lengths) values, without nulls.
        variable_finals: name -> such an array of has_final.sum() values. A dataset cannot hold them: what is not made
            a final observation of fixed size on the way is left out (`gear_data.ingest.pipeline.finals`).
        source_rows: rows of the source that the block used up, for progress.
        first: of the episodes that the source yields from `position` on, the number of this block's first one. Not 0
            where what was read at once came as several blocks: these have one position between them.
    """

    position: Position
    lengths: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[Any]]
    sources: Sequence[str]
    rows: npt.NDArray[np.int64]
    has_final: npt.NDArray[np.bool_]
    finals: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    metadata: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variable: Mapping[str, pa.Array] = field(default_factory=dict)
    variable_finals: Mapping[str, pa.Array] = field(default_factory=dict)
    source_rows: int = 0
    first: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: episode i is steps offsets[i] to offsets[i + 1]."""
        return offsets_of(self.lengths)

    def slice(self, start: int, stop: int) -> EpisodeBlock:
        """Episodes start to stop, without copying steps."""
        offsets = self.offsets
        first, last = int(offsets[start]), int(offsets[stop])
        finals = offsets_of(self.has_final.astype(np.int64))
        return EpisodeBlock(
            position=self.position,
            lengths=self.lengths[start:stop],
            columns={name: column[first:last] for name, column in self.columns.items()},
            sources=self.sources[start:stop],
            rows=self.rows[start:stop],
            has_final=self.has_final[start:stop],
            finals={name: column[finals[start] : finals[stop]] for name, column in self.finals.items()},
            metadata={name: values[start:stop] for name, values in self.metadata.items()},
            variable={name: array[first:last] for name, array in self.variable.items()},
            variable_finals={name: array[finals[start] : finals[stop]] for name, array in self.variable_finals.items()},
            source_rows=self.source_rows,
            first=self.first + start,
        )


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [n + 1]: running sums of lengths, from 0."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
