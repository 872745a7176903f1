"""Dataset -> Parquet, a row an episode: list columns of steps, scalar columns of episode facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.dataset import Dataset
from gear_data.exports.folder import refuse_existing, whole_folder
from gear_data.exports.nested import nested_episodes, nested_rows
from gear_data.progress import progress_bar
from gear_data.storage.atomic import atomic_file
from gear_data.storage.block import offsets_of
from gear_data.storage.tables import episode_metadata_names

#: Column bytes of a row group: small enough for streaming readers, large enough to compress.
_GROUP_BYTES = 32 << 20


def export_parquet(dataset: Dataset, destination: Path, progress: bool | None) -> tuple[list[str], int]:
    """Writes one file to a destination that ends in .parquet, else `data/train-00000-of-0000N.parquet`, a file a shard,
    as the HuggingFace hub names them. Returns the files' names and their bytes together."""
    with progress_bar(dataset.num_steps, "export", "step", progress) as bar:
        if destination.suffix == ".parquet":
            refuse_existing(destination)
            with atomic_file(destination) as temporary:
                _write(dataset, temporary, range(len(dataset.manifest.shards)), bar)
            return [destination.name], destination.stat().st_size
        count = len(dataset.manifest.shards)
        names = [f"data/train-{i:05d}-of-{count:05d}.parquet" for i in range(count)]
        with whole_folder(destination) as folder:
            (folder / "data").mkdir()
            for shard, name in enumerate(names):
                _write(dataset, folder / name, range(shard, shard + 1), bar)
        return names, sum((destination / name).stat().st_size for name in names)


def _write(dataset: Dataset, path: Path, shards: range, bar: Any) -> None:
    writer: pq.ParquetWriter | None = None
    try:
        for table, steps in _tables(dataset, shards):
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema)
            writer.write_table(table, row_group_size=len(table))
            bar.update(steps)
    finally:
        if writer is not None:
            writer.close()


def _tables(dataset: Dataset, shards: range) -> Iterator[tuple[pa.Table, int]]:
    ends = np.cumsum([entry.episodes for entry in dataset.manifest.shards])
    for shard in shards:
        first, last = int(ends[shard]) - dataset.manifest.shards[shard].episodes, int(ends[shard])
        offsets = dataset.offsets[first : last + 1] * dataset.schema.step_bytes
        start = 0
        while start < last - first:
            stop = int(np.searchsorted(offsets, offsets[start] + _GROUP_BYTES, side="right")) - 1
            stop = max(start + 1, min(stop, last - first))
            yield _episode_table(dataset, shard, first + start, first + stop)
            start = stop


def _episode_table(dataset: Dataset, shard: int, first: int, last: int) -> tuple[pa.Table, int]:
    """Episodes first to last, all of one shard, as rows; and their steps."""
    offsets = offsets_of(dataset.lengths[first:last])
    columns: dict[str, pa.Array] = {}
    for spec in dataset.schema.source_columns:
        steps = dataset.steps(shard, spec.name, dataset.offsets[first], dataset.offsets[last])
        columns[spec.name] = nested_episodes(steps, offsets, spec.name)
    finals = [dataset.final(i) for i in range(first, last)] if dataset.schema.final_columns else []
    for spec in dataset.schema.final_columns:
        columns[f"final_{spec.name}"] = _nullable(
            [None if final is None else final[spec.name] for final in finals],
            nested_rows(np.empty((0, *spec.shape), spec.dtype)).type,
        )
    table = dataset.episode_table.slice(first, last - first)
    for name in episode_metadata_names(table.column_names):
        facts = table.column(name)
        if pa.types.is_dictionary(facts.type):
            facts = facts.cast(pa.string())
        if dataset.episode_table.column(name).null_count < dataset.num_episodes:
            columns[name] = facts.combine_chunks()
    return pa.table(columns), int(offsets[-1])


def _nullable(values: list[Any], type_: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else value.tolist() for value in values], type_)
