"""Saves shards: whole ones are linked, others are written again with the episodes that stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.progress import progress_bar
from gear_data.ingest.findings.episode_checks import check_episodes, check_finite
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.merging.link import place_shard
from gear_data.ingest.pipeline.end_flags import check_end_flags
from gear_data.ingest.sources.arrays.blocks import episode_runs
from gear_data.schema import Schema
from gear_data.storage.arrow_files import buffer_offsets, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.episode_block import EpisodeBlock, offsets_of
from gear_data.storage.manifest import FileEntry, Manifest, ShardEntry
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics
from gear_data.storage.verify import episode_block, read_shard
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.shard_buffer import ShardBuffer

#: Bytes of a block that is checked and copied at once.
_BLOCK_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class SourceTables:
    """The tables of the dataset that is read.

    Attributes:
        episodes: the episode table.
        finals: the final observations; None if there are none.
    """

    episodes: pa.Table
    finals: pa.Table | None


@dataclass(frozen=True, eq=False)
class SavedShards:
    """The shards of a saved dataset.

    Attributes:
        shards: the shards, in order.
        linked: number of shards that are hard links.
        whole: number of shards that are links or copies of a whole shard. The others were written again.
        shard: int64 [episodes], shard of each episode.
        start: int64 [episodes], first row of each episode in its shard.
        statistics: of all columns but cameras.
    """

    shards: tuple[ShardEntry, ...]
    linked: int
    whole: int
    shard: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    statistics: dict[str, ColumnStatistics]


def save_shards(
    files: DatasetFiles,
    manifest: Manifest,
    tables: SourceTables,
    kept: npt.NDArray[np.bool_],
    store: FileStore,
    findings: FindingLog,
    progress: bool | None,
) -> SavedShards:
    """Saves the shards of the episodes that stay.

    A shard whose episodes all stay becomes a hard link, or a copy if a link is not possible. The other episodes are
    written to new shards, no larger than the largest shard of the dataset. Each shard that is read is compared with its
    checksum.

    Args:
        files, manifest, tables: the dataset.
        kept: bool [episodes], the episodes that stay.
        store: the folder of the new dataset.
        findings: receives what the checks of a conversion find in the episodes that stay.
        progress: show a bar; None shows one only on a terminal.

    Raises:
        CorruptShardError: a shard is damaged.
        DatasetReplacedError: the dataset was replaced meanwhile.
        StorageFullError, UnwritableError: the folder cannot be written to.
    """
    ends = np.cumsum([shard.episodes for shard in manifest.shards]).tolist()
    ranges = [slice(end - shard.episodes, end) for end, shard in zip(ends, manifest.shards, strict=True)]
    used = [index for index, rows in enumerate(ranges) if kept[rows].any()]
    statistics = RunningStatistics(manifest.schema)
    writer = _ShardWriter(store, manifest.schema, max(shard.bytes for shard in manifest.shards))
    linked = whole = 0
    with progress_bar(sum(manifest.shards[i].bytes for i in used), "save", "B", progress) as bar:
        for index in used:
            shard, mine = manifest.shards[index], kept[ranges[index]]
            batch = read_shard(files.local, manifest.schema, shard)
            if mine.all():
                placed, links = place_shard(store, shard, writer.next_name(), files)
                linked += links
                whole += 1
                writer.add_whole(placed, tables.episodes.column("start").to_numpy()[ranges[index]])
            episodes = tables.episodes.slice(ranges[index].start, shard.episodes)
            block = episode_block(batch, manifest, episodes, tables.finals)
            for piece in _pieces(_readable(block, files.name(shard.entry), manifest.schema), mine, shard):
                check_end_flags(piece, findings)
                check_finite(piece, findings, strict=False, rows_are_steps=True)
                check_episodes(piece, findings, rows_are_steps=True)
                statistics.update(piece.columns, piece.lengths)
                if not mine.all():
                    writer.append(piece)
            bar.update(shard.bytes)
    writer.flush()
    return SavedShards(
        tuple(writer.shards), linked, whole, np.concatenate(writer.shard), np.concatenate(writer.start),
        statistics.result(),
    )  # fmt: skip


def _readable(block: EpisodeBlock, file: str, schema: Schema) -> EpisodeBlock:
    """Returns stored episodes as the checks want them: with the shard as their source, and Boolean columns as bool."""
    return replace(
        block,
        columns={
            **block.columns,
            **{name: values.view(schema[name].numpy_dtype) for name, values in block.arrays.items()},
        },
        sources=[file] * len(block),
        rows=block.offsets[:-1],
    )


def _pieces(block: EpisodeBlock, kept: npt.NDArray[np.bool_], shard: ShardEntry) -> Iterator[EpisodeBlock]:
    """Yields runs of adjacent episodes that stay, of about `_BLOCK_BYTES`."""
    steps = max(1, _BLOCK_BYTES * shard.steps // shard.bytes)
    changes = np.flatnonzero(np.diff(kept)) + 1
    for first, last in pairwise([0, *changes.tolist(), len(kept)]):
        if not kept[first]:
            continue
        for begin, end in episode_runs(block.lengths[first:last], 1, steps):
            yield block.slice(first + begin, first + end)


class _ShardWriter:
    """Writes shards of episodes, and lists them among shards that are kept whole.

    Args:
        store: the folder of the dataset.
        schema: all columns.
        shard_bytes: size limit of a shard. A larger episode gets a separate shard.

    Attributes:
        shards: the shards, in order.
        shard, start: int64 arrays, the shard and the first row of each episode.
    """

    def __init__(self, store: FileStore, schema: Schema, shard_bytes: int) -> None:
        self._store = store
        self._schema = schema
        self._shard_bytes = shard_bytes
        self._buffer: ShardBuffer | None = None
        self._lengths: list[npt.NDArray[np.int64]] = []
        self.shards: list[ShardEntry] = []
        self.shard: list[npt.NDArray[np.int64]] = []
        self.start: list[npt.NDArray[np.int64]] = []

    def next_name(self) -> str:
        """Returns the name of the next shard. Episodes in the buffer are written before."""
        self.flush()
        return f"shards/{len(self.shards):06d}.arrow"

    def add_whole(self, shard: ShardEntry, starts: npt.NDArray[np.int64]) -> None:
        """Lists a shard that is in place."""
        self.shard.append(np.full(len(starts), len(self.shards)))
        self.start.append(starts)
        self.shards.append(shard)

    def append(self, block: EpisodeBlock) -> None:
        """Adds episodes, and writes a shard whenever the buffer is full."""
        if self._buffer is None:
            self._buffer = ShardBuffer(self._schema, self._shard_bytes)
        sizes = self._buffer.sizes(block)
        first = 0
        while first < len(block):
            room = self._shard_bytes - self._buffer.bytes
            last = int(np.searchsorted(sizes, sizes[first] + room, side="right")) - 1
            if last <= first and self._buffer.steps:
                self.flush()
                continue
            last = max(last, first + 1)
            self._buffer.append(block.slice(first, last))
            self._lengths.append(block.lengths[first:last])
            first = last

    def flush(self) -> None:
        """Writes the episodes in the buffer."""
        if self._buffer is None or not self._buffer.steps:
            return
        file, lengths = f"shards/{len(self.shards):06d}.arrow", np.concatenate(self._lengths)
        with self._store.writing(file) as path:
            write_ipc(path, self._buffer.record_batch())
            entry = FileEntry(file, path.stat().st_size, checksum(path))
            buffers, variable = buffer_offsets(path, self._schema)
        shard = ShardEntry(entry, len(lengths), self._buffer.steps, buffers, variable)
        self.add_whole(shard, offsets_of(lengths)[:-1])
        self._buffer.clear()
        self._lengths = []
