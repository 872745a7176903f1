"""A dataset as a source, for merges that write its steps again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from gear_data.ingest.findings.dataset_checks import lasting_findings
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.merging.dataset_cameras import read_index, source_of_videos, video_times
from gear_data.ingest.merging.inputs import read_episode_table, read_finals_table
from gear_data.ingest.source import NO_VIDEOS, Unit
from gear_data.ingest.sources.arrays.blocks import episode_runs
from gear_data.schema import ColumnSpec
from gear_data.storage.dataset_files import open_files
from gear_data.storage.episode_block import EpisodeBlock, Position, Values
from gear_data.storage.episode_tables import episode_metadata_names, with_plain_text
from gear_data.storage.verify import episode_block, read_shard

#: Name of the format. It is never recognised: only `merge` reads datasets.
GEAR = "gear"
#: Bytes of a block.
_BLOCK_BYTES = 32 << 20


class DatasetSource:
    """A dataset as a source. See `EpisodeSource`.

    Derived columns are left out, because conversion computes them again. A shard is compared with its checksum when it
    is read. A position is (number of the shard, 0).

    Args:
        place: path or URL of the dataset.

    Raises:
        GearError: the dataset cannot be opened.
    """

    def __init__(self, place: str) -> None:
        self._files = open_files(place)
        self._manifest = self._files.manifest()
        self._episodes = read_episode_table(self._files, self._manifest)
        self._finals = read_finals_table(self._files, self._manifest)
        self._index = read_index(self._files, self._manifest)
        self.videos = NO_VIDEOS
        if self._index is not None:
            self.videos = source_of_videos(self._files, self._manifest, self._index, self._episodes)
        self._facts = episode_metadata_names(self._episodes.column_names, self._manifest.schema)  # has `task`
        self.resume_state: dict[str, Any] = {}
        self.findings = FindingLog()
        again = ("long-gop", "reserved-name", "variable-frame-rate")
        self.findings.extend(lasting_findings(self._manifest.findings, *again))

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        return self._manifest.schema.source_columns

    @property
    def num_rows(self) -> int | None:
        return self._manifest.steps

    @property
    def rows_are_steps(self) -> bool:
        return True

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the dataset, and its origin under `dataset`."""
        manifest = self._manifest
        metadata = manifest.provenance.get("metadata")
        origin = {"fingerprint": manifest.fingerprint, "provenance": manifest.provenance}
        return {**(metadata if isinstance(metadata, Mapping) else {}), "dataset": origin}

    def units(self) -> Sequence[Unit]:
        shards = self._manifest.shards
        return [Unit(Position(index, 0), shard.bytes) for index, shard in enumerate(shards)]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        first = 0
        for index, shard in enumerate(self._manifest.shards):
            if start.file <= index and Position(index, 0) < stop:
                yield from self._shard_blocks(index, first)
            first += shard.episodes

    def _shard_blocks(self, index: int, first: int) -> Iterator[EpisodeBlock]:
        """Yields the episodes of a shard, of which the first has the id `first`."""
        shard, manifest = self._manifest.shards[index], self._manifest
        batch = read_shard(self._files.local, manifest.schema, shard)
        episodes = self._episodes.slice(first, shard.episodes)
        block = episode_block(batch, manifest, episodes, self._finals, self._index)
        times = {}
        if self._index is not None:
            times = {name: video_times(segments, self._index) for name, segments in block.videos.items()}
        block = replace(
            block,
            position=Position(index, 0),
            columns={c.name: _plain(block.columns[c.name], c) for c in self.columns},
            finals={c.name: _plain(block.finals[c.name], c) for c in manifest.schema.final_columns},
            sources=episodes.column("source").to_pylist(),
            rows=episodes.column("start").to_numpy(),
            videos={},
            video_times=times,
            metadata=_facts(episodes, self._facts),
        )
        bytes_per_step = max(1, shard.bytes // shard.steps)
        for begin, end in episode_runs(block.lengths, bytes_per_step, _BLOCK_BYTES):
            piece = block.slice(begin, end)
            yield replace(piece, source_rows=int(piece.lengths.sum()))


def _facts(episodes: pa.Table, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Returns facts with their types. Values of Python have no int8, no float32, and no nanoseconds."""
    plain = with_plain_text(episodes)
    facts: dict[str, Sequence[Any]] = {name: plain.column(name).combine_chunks() for name in names}
    return {**facts, "task": episodes.column("task").to_pylist()}


def _plain(values: Values, column: ColumnSpec) -> Values:
    """Returns stored values with the dtype that users see.

    Booleans are stored as bytes.
    """
    return values if column.variable_length else values.view(column.numpy_dtype)
