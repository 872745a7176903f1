"""MappedSource: the base of sources that change the blocks of another source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError
from gear_data.ingest.findings.log import place_of
from gear_data.ingest.source import EpisodeSource, SourceVideos, Unit, source_videos
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock, Position


class MappedSource:
    """An `EpisodeSource` whose blocks are made of the blocks of another source.

    A subclass defines `_mapped`, and `_pieces` if a changed block may be much larger. All blocks that are made of one
    block keep its position (`EpisodeBlock.first`).

    Args:
        source: the other source.
        columns: the columns of the changed blocks; None for the columns of the source.
        videos: the cameras; None for the cameras of the source.
        skip_bad: whether malformed episodes are left out.
    """

    def __init__(
        self,
        source: EpisodeSource,
        columns: tuple[ColumnSpec, ...] | None = None,
        videos: SourceVideos | None = None,
        *,
        skip_bad: bool = False,
    ) -> None:
        self.findings = source.findings
        self.resume_state = source.resume_state
        self.columns = source.columns if columns is None else columns
        self.videos = source_videos(source) if videos is None else videos
        self._source = source
        self._skip_bad = skip_bad

    @property
    def num_rows(self) -> int | None:
        return self._source.num_rows

    @property
    def rows_are_steps(self) -> bool:
        return self._source.rows_are_steps

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._source.metadata

    def units(self) -> Sequence[Unit]:
        return self._source.units()

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        position: Position | None = None
        first = used = 0
        for block in self._source.blocks(start, stop):
            # The position changes only if no finding was added since the last yielded episode. Otherwise a resumed run
            # would miss the finding.
            if position is None or (block.first == 0 and used == 0):
                position, first = block.position, 0
            if not len(block):  # all its episodes were left out
                used += block.source_rows
            for piece in self._pieces(block):
                used += piece.source_rows
                for mapped in self._mapped(piece):
                    yield replace(mapped, position=position, first=first, source_rows=used)
                    first, used = first + len(mapped), 0

    def _pieces(self, block: EpisodeBlock) -> Iterator[EpisodeBlock]:
        """Yields the parts of a block that are changed at once."""
        if len(block):
            yield block

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        """Yields the changed part of a block, split where episodes are left out."""
        raise NotImplementedError

    def _report_bad(self, block: EpisodeBlock, episode: int, message: str, column: str, hint: str | None) -> None:
        """Adds a finding for a malformed episode of a block, or raises BadEpisodeError."""
        file, row = place_of(block, episode)
        error = BadEpisodeError(message, file=file, column=column, row=row, hint=hint)
        self.findings.add_bad_episode(error, skip=self._skip_bad)


def cut(block: EpisodeBlock, sizes: npt.NDArray[np.int64], limit: int) -> Iterator[EpisodeBlock]:
    """Yields pieces of a block of up to `limit` bytes, or of one episode.

    Each piece has its share of the source's rows.

    Args:
        block: the block.
        sizes: int64 [n + 1], the bytes of the first 0, 1, ..., n episodes.
        limit: the bytes of a piece.
    """
    first = rows = 0
    while first < len(block):
        last = max(first + 1, int(np.searchsorted(sizes, sizes[first] + limit, side="right")) - 1)
        so_far = block.source_rows * last // len(block)
        yield replace(block.slice(first, last), source_rows=so_far - rows)
        first, rows = last, so_far


def without(block: EpisodeBlock, bad: npt.NDArray[np.bool_]) -> Iterator[EpisodeBlock]:
    """Yields the runs of episodes of a block that are not bad, bool [n]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], bad, [True]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        yield block.slice(first, last)
