"""Compaction: small shards at the end of a growing dataset become one.

Shards of similar size are joined, as in a log-structured merge tree (O'Neil et al., 1996). So each step is written
again at most log2(shard_bytes / smallest shard) times.

Eviction by weight writes shards again without the episodes that leave: see `gear_data.growing.eviction`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptShardError
from gear_data.growing.draft import Draft, DraftPart, without_episodes
from gear_data.growing.part_statistics import join_statistics, part_file, rewrite_statistics
from gear_data.ingest.videos.draft import video_bytes
from gear_data.schema import Schema
from gear_data.storage.arrow_files import buffer_offsets, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.episode_tables import with_values
from gear_data.storage.generations.growth import Part
from gear_data.storage.manifest import REPAIR, FileEntry, ShardEntry
from gear_data.storage.verify import read_shard
from gear_data.storage.writing.file_store import LocalFileStore


def parts_to_join(draft: Draft, shard_bytes: int, shard_steps: int | None) -> int:
    """Returns how many parts at the end become one; 1: none.

    Args:
        draft: the dataset.
        shard_bytes: the largest size of the new shard.
        shard_steps: its most steps; None: no limit.
    """
    last = draft.parts[-1]
    size, steps, count = last.bytes, last.steps, 1
    for part in reversed(draft.parts[:-1]):
        full = size + part.bytes > shard_bytes or (shard_steps is not None and steps + part.steps > shard_steps)
        if part.bytes > size or full:
            break
        size, steps, count = size + part.bytes, steps + part.steps, count + 1
    return count


def rewritten_parts(
    store: LocalFileStore, draft: Draft, parts: range, gone: npt.NDArray[np.bool_], file: str, name: str
) -> Draft:
    """Writes some parts of a draft as one shard, without some episodes, and returns the draft with it.

    Args:
        store: the dataset's folder.
        draft: the draft.
        parts: numbers of the parts.
        gone: bool [episodes], the episodes that leave. They are in these parts, which keep others.
        file: name of the new shard.
        name: name of the new part.

    Raises:
        CorruptShardError: a shard cannot be read, or has another checksum.
        StorageFullError, UnwritableError: the new shard cannot be written.
    """
    old = draft.parts[parts.start : parts.stop]
    shards = [shard for part in old for shard in part.shards]
    first = sum(len(part.shards) for part in draft.parts[: parts.start])
    draft = without_episodes(draft, gone)
    shard, start, length = (draft.episodes.column(each).to_numpy() for each in ("shard", "start", "length"))
    inside = (shard >= first) & (shard < first + len(shards))
    with store.writing(file) as path:
        pieces = []
        for number, entry in enumerate(shards, first):
            here = shard == number
            pieces += _rows(_batch(store, draft.schema, entry), start[here], length[here])
        (batch,) = pa.Table.from_batches(pieces).combine_chunks().to_batches()
        write_ipc(path, batch)
        written = FileEntry(file, path.stat().st_size, checksum(path))
        buffers, variable = buffer_offsets(path, draft.schema)
    new = ShardEntry(written, int(inside.sum()), batch.num_rows, buffers, variable)
    # A publication that failed may have left statistics of this name, of other episodes.
    store.remove(part_file(name))
    if draft.schema.videos:
        names = [part.part.name for part in old]
        if gone.any():
            rewrite_statistics(store, draft.schema, names, name, new, length[inside])
        else:
            join_statistics(store, draft.schema, names, name)
    start, shard = start.copy(), shard.copy()
    start[inside] = np.cumsum(length[inside]) - length[inside]
    shard[shard >= first + len(shards)] -= len(shards) - 1
    shard[inside] = first
    episodes = with_values(with_values(draft.episodes, "start", start), "shard", shard)
    part = DraftPart(Part(name, 1), (new,))
    draft = replace(draft, parts=(*draft.parts[: parts.start], part, *draft.parts[parts.stop :]), episodes=episodes)
    sizes = video_bytes(draft.videos, episodes, draft.schema.videos, draft.part_of_shard(), len(draft.parts))
    return replace(
        draft, parts=tuple(replace(each, video_bytes=size) for each, size in zip(draft.parts, sizes, strict=True))
    )


def _rows(batch: pa.RecordBatch, start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
    """Returns the runs of adjacent episodes of a batch."""
    begins = np.flatnonzero(np.append(True, start[1:] != start[:-1] + length[:-1])) if len(start) else start
    return [
        batch.slice(int(start[begin]), int(length[begin:end].sum()))
        for begin, end in pairwise([*begins.tolist(), len(start)])
    ]


def _batch(store: LocalFileStore, schema: Schema, shard: ShardEntry) -> pa.RecordBatch:
    try:
        # Compares checksums, too: else the new checksum would hide damage.
        return read_shard(lambda entry: nullcontext(store.path(entry.file)), schema, shard)
    except OSError as error:
        raise CorruptShardError(
            f"cannot be read: {error}",
            file=str(store.path(shard.entry.file)),
            hint=REPAIR,
        ) from error
