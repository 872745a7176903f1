"""A dataset of 10^10 steps in 10^7 episodes that takes 0.5 GB of disk.

Its shards are sparse files. With fewer episodes it is smaller.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from common import synthetic_episodes, write_parquet

#: Episodes by default, steps of an average episode, and shards.
EPISODES, EPISODE_STEPS, SHARDS = 10**7, 1000, 100
#: Shards have equal numbers of episodes, which come in pairs.
EPISODES_MULTIPLE = 2 * SHARDS
#: Folders: the dataset, and a converted dataset of 2,000 steps.
SPARSE, SMALL = "sparse", "small"
#: No one reads the shards as a whole.
_NO_CHECKSUM = "xxh3-128:" + "0" * 32


def write_sparse_dataset(folder: Path, episodes: int = EPISODES, average: int = EPISODE_STEPS) -> None:
    """Writes the dataset `SPARSE` in a folder, and the dataset `SMALL`.

    The manifest and the episode table are real. A step has 11 observations, 3 actions and a reward; every value is
    zero. The file system must support sparse files.

    Args:
        episodes: their number, a multiple of `EPISODES_MULTIPLE`.
        average: steps of an average episode. Episodes have 1 to 2 average - 1 steps.
    """
    import gear_data
    from gear_data.storage.atomic import checksum, write_text
    from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry

    # `SMALL` provides the schema and everything that does not depend on size.
    write_parquet(synthetic_episodes(2000), folder / "source.parquet")
    gear_data.convert(folder / "source.parquet", folder / SMALL, progress=False)
    small = Manifest.load(folder / SMALL)
    dataset = folder / SPARSE
    (dataset / "shards").mkdir(parents=True)

    # Pairs add up to twice the average, so that all shards have the same number of steps.
    half = np.random.default_rng(0).integers(1, 2 * average, episodes // EPISODES_MULTIPLE)
    lengths = np.concatenate([half, 2 * average - half])
    steps = int(lengths.sum())
    buffers, end = {}, 0
    for column in small.schema:
        buffers[column.name] = end
        end += -(-steps * column.row_bytes // 4096) * 4096
    shards = []
    for number in range(SHARDS):
        entry = FileEntry(f"shards/{number:06d}.arrow", end, _NO_CHECKSUM)
        with (dataset / entry.file).open("wb") as file:
            file.truncate(end)
        shards.append(ShardEntry(entry, len(lengths), steps, buffers))
    table = dataset / "episodes.arrow"
    _write_episodes(table, lengths)
    tables = {"episodes": FileEntry(table.name, table.stat().st_size, checksum(table))}
    whole = replace(small, episodes=episodes, steps=steps * SHARDS, shards=tuple(shards), tables=tables)
    write_text(dataset / MANIFEST_NAME, whole.to_text())


def _write_episodes(path: Path, lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Writes an episode table as conversion does.

    It is one record batch with dictionary-encoded names.
    """
    from gear_data.storage.arrow_files import write_ipc
    from gear_data.storage.episode_tables import EPISODE_SCHEMA

    rng, count = np.random.default_rng(1), len(lengths) * SHARDS
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["holes"], pa.large_string()))
    columns = {
        "episode_id": np.arange(count),
        "shard": np.repeat(np.arange(SHARDS, dtype=np.int32), len(lengths)),
        "start": np.tile(np.cumsum(lengths) - lengths, SHARDS),
        "length": np.tile(lengths, SHARDS),
        "return": rng.random(count) * 100,
        "terminated": np.ones(count, np.bool_),
        "truncated": np.zeros(count, np.bool_),
        "source": names,
        "task": names,
        "content": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), count, [None, pa.py_buffer(rng.bytes(16 * count))]
        ),
    }
    fields = [
        pa.field(field.name, names.type, field.nullable) if columns[field.name] is names else field
        for field in EPISODE_SCHEMA
    ]
    arrays = [value if isinstance(value, pa.Array) else pa.array(value) for value in (columns[f.name] for f in fields)]
    write_ipc(path, pa.record_batch(arrays, schema=pa.schema(fields)))
