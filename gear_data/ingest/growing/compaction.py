"""Compaction: small shards at the end of a growing dataset become one.

Shards of similar size are joined, as in a log-structured merge tree (O'Neil et al., 1996). So each step is written
again at most log2(shard_bytes / smallest shard) times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from gear_data.errors import CorruptShardError
from gear_data.ingest.growing.draft import Draft, DraftPart
from gear_data.ingest.growing.part_statistics import join_statistics
from gear_data.storage.arrow_files import buffer_offsets, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.episode_tables import with_values
from gear_data.storage.generations.growth import Part
from gear_data.storage.manifest import FileEntry, ShardEntry
from gear_data.storage.verify import check_bytes
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


def joined_parts(store: LocalFileStore, draft: Draft, count: int, file: str, name: str) -> Draft:
    """Writes the last parts of a draft as one shard, and returns the draft with it.

    Args:
        store: the dataset's folder.
        draft: the draft.
        count: number of parts at its end.
        file: name of the new shard.
        name: name of the new part.

    Raises:
        CorruptShardError: a shard cannot be read, or has another checksum.
        StorageFullError, UnwritableError: the new shard cannot be written.
    """
    kept, last = draft.parts[:-count], draft.parts[-count:]
    shards = [shard for part in last for shard in part.shards]
    first = sum(len(part.shards) for part in kept)
    with store.writing(file) as path:
        batches = [_batch(store, shard) for shard in shards]
        table = pa.Table.from_batches(batches).combine_chunks()
        (batch,) = table.to_batches()
        write_ipc(path, batch)
        entry = FileEntry(file, path.stat().st_size, checksum(path))
        buffers, variable = buffer_offsets(path, draft.schema)
    if draft.schema.videos:
        join_statistics(store, draft.schema, [part.part.name for part in last], name)
    joined = ShardEntry(entry, sum(s.episodes for s in shards), sum(s.steps for s in shards), buffers, variable)
    shard, start = (draft.episodes.column(each).to_numpy() for each in ("shard", "start"))
    before = np.concatenate([[0], np.cumsum([s.steps for s in shards])])
    inside = shard >= first
    start = start + np.where(inside, before[np.maximum(shard - first, 0)], 0)
    episodes = with_values(draft.episodes, "start", start)
    episodes = with_values(episodes, "shard", np.minimum(shard, first))
    return replace(
        draft, parts=(*kept, DraftPart(Part(name, 1), (joined,), sum(p.video_bytes for p in last))), episodes=episodes
    )


def _batch(store: LocalFileStore, shard: ShardEntry) -> pa.RecordBatch:
    path = store.folder / shard.entry.file
    try:
        # Else the new checksum would hide damage.
        check_bytes(path, shard.entry)
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise CorruptShardError(
            f"cannot be read: {error}", file=str(path), hint="restore it, or write it again with 'gear-data repair'"
        ) from error
