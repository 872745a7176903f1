"""The data files of a LeRobot v3.0 dataset.

They are `data/chunk-000/file-000.parquet` and so on, with one row per step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.dataset.dataset import Dataset
from gear_data.exports.exporter import BLOCK_BYTES
from gear_data.exports.lerobot.features import CLOCK, DONE, ORDER, TASK, Feature
from gear_data.exports.lerobot.meta import DATA_MB, data_path
from gear_data.exports.table_writer import TableWriter
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics


class DataFilesWriter:
    """Writes data files of about `DATA_MB` each.

    Args:
        folder: folder of the LeRobot dataset.
        dataset: dataset to export.
        columns: features of the dataset's columns, without videos, and without those that are generated.
        task_numbers: `task_index` of each episode's first step; None if it is as in the dataset's column. A column of
            the dataset may have further numbers in an episode, which stay.
        fps: steps per second.

    Attributes:
        generated: LeRobot's own columns that the dataset lacks, or has with other numbers of tasks.
        files: for each episode so far, the index of its data file.
    """

    def __init__(
        self,
        folder: Path,
        dataset: Dataset,
        columns: Sequence[Feature],
        task_numbers: npt.NDArray[np.int64] | None,
        fps: float,
    ) -> None:
        self.generated = _generated_columns(dataset, task_numbers is not None)
        self.files: list[int] = []
        self._folder = folder
        self._dataset = dataset
        self._columns = columns
        self._task_numbers = task_numbers
        self._fps = fps
        self._running = RunningStatistics(Schema(self.generated))
        self._writer: TableWriter | None = None
        self._file = -1
        self._bytes = 0

    def __enter__(self) -> DataFilesWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def write(self, first: int, last: int) -> None:
        """Writes the episodes `first` to `last` into one file.

        Args:
            first: position of the first episode.
            last: position after the last episode. A range larger than `DATA_MB` gets a separate file.
        """
        dataset, lengths = self._dataset, self._dataset.lengths[first:last]
        size, steps = int(dataset.sizes(first, last).sum()), int(lengths.sum())
        if self._bytes + size > DATA_MB << 20:
            self._close()
        self._bytes += size
        generated = self._generated_values(first, last)
        self._running.update(generated, lengths)
        values = {feature.name: _values(dataset, feature.spec, first, last) for feature in self._columns}
        rows = max(1, steps * BLOCK_BYTES // max(1, size))
        for start in range(0, steps, rows):
            part = slice(start, min(steps, start + rows))
            arrays = {feature.name: feature.to_arrow(values[feature.name][part]) for feature in self._columns}
            arrays.update({name: pa.array(column[part]) for name, column in generated.items()})
            self._write_table(pa.table(arrays))
        self.files += [self._file] * (last - first)

    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Closes the files, and returns the statistics of the generated columns."""
        self._close()
        return self._running.result()

    def _write_table(self, table: pa.Table) -> None:
        if self._writer is None:
            self._file += 1
            path = self._folder / data_path(self._file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = TableWriter(path)
        self._writer.write(table)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._bytes = None, 0

    def _generated_values(self, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
        dataset, lengths = self._dataset, self._dataset.lengths[first:last]
        index = np.arange(int(dataset.offsets[first]), int(dataset.offsets[last]))
        frames = index - np.repeat(dataset.offsets[first:last], lengths)
        values = {
            CLOCK: (frames / self._fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.repeat(np.arange(first, last), lengths),
            "index": index,
            DONE: dataset.steps("terminated", first, last) | dataset.steps("truncated", first, last),
        }
        if self._task_numbers is not None:
            values[TASK] = np.repeat(self._task_numbers[first:last], lengths)
            if TASK in dataset.schema:
                before = dataset.steps(TASK, first, last).astype(np.int64)
                begins = dataset.offsets[first:last] - dataset.offsets[first]
                values[TASK] = np.where(before == np.repeat(before[begins], lengths), values[TASK], before)
        return {spec.name: values[spec.name] for spec in self.generated}


def _generated_columns(dataset: Dataset, tasks: bool) -> tuple[ColumnSpec, ...]:
    numbers = (ColumnSpec(name, "int64") for name in (*ORDER, TASK))
    specs = (ColumnSpec(CLOCK, "float32"), *numbers, ColumnSpec(DONE, "bool"))
    return tuple(spec for spec in specs if spec.name not in dataset.schema or (spec.name == TASK and tasks))


def _values(dataset: Dataset, spec: ColumnSpec, first: int, last: int) -> Any:
    return (dataset.values if spec.variable_length else dataset.steps)(spec.name, first, last)
