"""Blocks of whole episodes.

Sources are read, and shards are filled, block by block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.schema import ColumnSpec, mask_column
from gear_data.video.segments import VideoSegments, VideoTimes

#: Values of a column: [n, *shape], or `large_string` or `large_binary` without nulls for a column of variable length.
Values: TypeAlias = npt.NDArray[Any] | pa.Array


class Position(NamedTuple):
    """Place in a source from which reading can start again.

    Positions are ordered like the source's episodes.

    Attributes:
        file: index of the file. A source may count other units as files, such as episodes.
        row: row in the file.
    """

    file: int
    row: int


#: The position of a source's first episode.
BEGIN = Position(0, 0)

#: The position after a source's last episode.
END = Position(1 << 62, 0)


@dataclass(frozen=True)
class EpisodeBlock:
    """n whole episodes, column by column.

    A column holds the steps of all episodes, one after another.

    Attributes:
        position: place in the source where the block starts. Reading from there yields the same episodes.
        lengths: int64 [n], steps of each episode, all positive.
        columns: name -> the values of sum(lengths) steps. Arrays are C-contiguous; booleans have dtype bool.
        sources: n names of files (or other sources), one per episode.
        rows: int64 [n], source row of each episode; of its first step if each source row is a step.
        finals: name -> the final observations of the has_final.sum() episodes that have one. Datasets cannot store
            those of variable length: `gear_data.ingest.pipeline.stored_columns` drops them.
        has_final: bool [n].
        metadata: name -> n values that the source stores per episode. An Arrow array keeps its type.
        videos: name of a video -> the frames of the episodes.
        video_times: name of a video -> the same as a source knows them. Conversion turns them into `videos`.
        source_rows: number of source rows in the block, for progress.
        first: index of the block's first episode among the episodes from `position` on. Above 0 if one read gave
            several blocks, which then share a position.
    """

    position: Position
    lengths: npt.NDArray[np.int64]
    columns: Mapping[str, Values]
    sources: Sequence[str]
    rows: npt.NDArray[np.int64]
    has_final: npt.NDArray[np.bool_]
    finals: Mapping[str, Values] = field(default_factory=dict)
    metadata: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    videos: Mapping[str, VideoSegments] = field(default_factory=dict)
    video_times: Mapping[str, VideoTimes] = field(default_factory=dict)
    source_rows: int = 0
    first: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64 [n + 1]. Episode i has the steps offsets[i] to offsets[i + 1]."""
        return offsets_of(self.lengths)

    def locate(self, step: int) -> tuple[int, int]:
        """Returns the episode of a step of the block, and the index of the step in its episode."""
        offsets = self.offsets
        episode = int(np.searchsorted(offsets, step, side="right")) - 1
        return episode, int(step - offsets[episode])

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of a fixed size."""
        return {name: values for name, values in self.columns.items() if isinstance(values, np.ndarray)}

    @property
    def has_rewards(self) -> npt.NDArray[np.bool_]:
        """bool [n]: whether the source of each episode has rewards.

        See `gear_data.schema.mask_column`.
        """
        mask = self.columns.get(mask_column("rewards").name)
        if mask is None or mask.ndim != 1:
            return np.full(len(self), "rewards" in self.columns)
        return mask[self.offsets[:-1]].astype(np.bool_)

    def slice(self, start: int, stop: int) -> EpisodeBlock:
        """Returns the episodes `start` to `stop`, without copying steps."""
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
            videos={name: segments[start:stop] for name, segments in self.videos.items()},
            video_times={name: times[start:stop] for name, times in self.video_times.items()},
            source_rows=self.source_rows,
            first=self.first + start,
        )


def rows_of(values: Values, rows: npt.NDArray[Any]) -> Values:
    """Returns rows of a column: int64, their indices; or bool [n]."""
    if not isinstance(values, pa.Array):
        return values[rows]
    return values.filter(pa.array(rows)) if rows.dtype == np.bool_ else values.take(pa.array(rows))


def shaped(values: Values, spec: ColumnSpec) -> Values:
    """Returns the values of a column with the shape that it declares."""
    return values if spec.variable_length else values.reshape(len(values), *spec.shape)


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the cumulative sums of lengths from 0, int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
