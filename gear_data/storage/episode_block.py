"""Blocks of whole episodes.

Sources are read, and shards are filled, block by block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.schema import mask_column
from gear_data.video.segments import VideoSegments, VideoTimes


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
        columns: name -> [sum(lengths), *shape], C-contiguous; booleans have dtype bool. Fixed-size columns only.
        sources: n names of files (or other sources), one per episode.
        rows: int64 [n], source row of each episode; of its first step if each source row is a step.
        finals: name -> [has_final.sum(), *shape], final observations of the episodes that have one.
        has_final: bool [n].
        metadata: name -> n values that the source stores per episode.
        variable: name -> `large_string` or `large_binary` array of sum(lengths) values, without nulls.
        variable_finals: name -> array like in `variable`, of has_final.sum() values. Datasets cannot store them.
            `gear_data.ingest.pipeline.stored_columns` converts them to fixed size or drops them.
        videos: name of a video -> the frames of the episodes.
        video_times: name of a video -> the same as a source knows them. Conversion turns them into `videos`.
        source_rows: number of source rows in the block, for progress.
        first: index of the block's first episode among the episodes from `position` on. Above 0 if one read gave
            several blocks, which then share a position.
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
            variable={name: array[first:last] for name, array in self.variable.items()},
            variable_finals={name: array[finals[start] : finals[stop]] for name, array in self.variable_finals.items()},
            videos={name: segments[start:stop] for name, segments in self.videos.items()},
            video_times={name: times[start:stop] for name, times in self.video_times.items()},
            source_rows=self.source_rows,
            first=self.first + start,
        )


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the cumulative sums of lengths from 0, int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
