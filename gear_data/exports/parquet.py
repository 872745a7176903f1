"""Export to Parquet with a row per episode: lists of steps, and episode metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from gear_data.common.progress import ProgressBar, progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.tables.metadata import episode_metadata, metadata_names
from gear_data.errors import UnsupportedColumnError
from gear_data.exports.destination import FILE_SUFFIXES, atomic_folder, atomic_new_file
from gear_data.exports.exporter import ExportOptions, ExportReport, episode_blocks, rename_hint, report_of
from gear_data.exports.metadata import final_observations
from gear_data.exports.nested import nested_episodes, nested_finals, nested_values
from gear_data.exports.table_writer import TableWriter
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.episode_tables import fact_field


def export_parquet(dataset: Dataset, destination: Path, options: ExportOptions) -> ExportReport:
    """Writes the destination if it ends in .parquet, otherwise a folder.

    The folder has one file `data/train-00000-of-0000N.parquet` for each shard with exported episodes. The HuggingFace
    hub uses these names. A fact with the name of a column is left out.

    Raises:
        UnsupportedColumnError: a column of one block exceeds the 32-bit offsets of its lists, or has the name of final
            observations.
    """
    shards, taken = _shard_runs(dataset), _column_names(dataset)
    left_out = [name for name in metadata_names(dataset) if name in taken]
    with progress_bar(dataset.num_steps, "export", "step", options.progress) as bar:
        if destination.suffix in FILE_SUFFIXES["parquet"]:
            with atomic_new_file(destination, options.overwrite) as temporary:
                _write(dataset, temporary, shards, bar)
            return report_of(dataset, destination, left_out)
        names = [f"data/train-{i:05d}-of-{len(shards):05d}.parquet" for i in range(len(shards))]
        with atomic_folder(destination, options.overwrite) as folder:
            (folder / "data").mkdir()
            for shard, name in zip(shards, names, strict=True):
                _write(dataset, folder / name, [shard], bar)
    return report_of(dataset, destination, left_out)


def _column_names(dataset: Dataset) -> set[str]:
    """Returns the names of the columns of steps and final observations."""
    names = {spec.name for spec in dataset.schema.source_columns}
    for spec in dataset.schema.final_columns:
        if (name := f"final_{spec.name}") in names:
            raise UnsupportedColumnError(
                f"the export to Parquet puts the final observations of '{spec.name}' under this name",
                column=name,
                hint=rename_hint(name),
            )
        names.add(name)
    return names


def _shard_runs(dataset: Dataset) -> list[tuple[int, int]]:
    """Returns the ranges of consecutive episodes that are in one shard."""
    changes = np.flatnonzero(np.diff(dataset.episode_table.column("shard").to_numpy())) + 1
    ends = [*changes.tolist(), dataset.num_episodes]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _write(dataset: Dataset, path: Path, runs: Sequence[tuple[int, int]], bar: ProgressBar) -> None:
    with TableWriter(path) as writer:
        for table, steps in _tables(dataset, runs):
            writer.write(table)
            bar.update(steps)


def _tables(dataset: Dataset, runs: Sequence[tuple[int, int]]) -> Iterator[tuple[pa.Table, int]]:
    for first, last in runs:
        for start, stop in episode_blocks(dataset, first, last):
            yield _episode_table(dataset, start, stop)


def _episode_table(dataset: Dataset, first: int, last: int) -> tuple[pa.Table, int]:
    """Returns the episodes `first` to `last` as rows, and their number of steps."""
    offsets = offsets_of(dataset.lengths[first:last])
    columns: dict[str, pa.Array] = {}
    for spec in dataset.schema.source_columns:
        if spec.variable_length:
            columns[spec.name] = nested_values(dataset.values(spec.name, first, last), offsets, spec.name)
        else:
            columns[spec.name] = nested_episodes(dataset.steps(spec.name, first, last), offsets, spec.name)
    if dataset.schema.final_columns:
        finals = final_observations(dataset, first, last)
        for spec in dataset.schema.final_columns:
            columns[f"final_{spec.name}"] = nested_finals(finals, spec)
    metadata = episode_metadata(dataset, first, last)
    facts = {name: values for name, values in metadata.items() if name not in columns}
    fields = [pa.field(name, values.type) for name, values in columns.items()]
    fields += [fact_field(name, values.type) for name, values in facts.items()]
    columns.update(facts)
    return pa.table(list(columns.values()), schema=pa.schema(fields)), int(offsets[-1])
