"""Dataset -> LeRobot v3.0: `data/chunk-000/file-000.parquet` with a row a step, and what is known of it under `meta/`.

Layout: https://github.com/huggingface/lerobot, `lerobot/datasets/utils.py` and `lerobot_dataset.py` (0.4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.exports.destination import atomic_folder
from gear_data.exports.exporter import BLOCK_BYTES, ExportedFiles, ExportOptions, episode_blocks, exported_files
from gear_data.exports.lerobot.features import CLOCK, DONE, ORDER, TASK, Feature, features
from gear_data.exports.lerobot.meta import DATA_MB, LISTED, data_path, write_meta
from gear_data.exports.metadata import metadata_names, source_metadata
from gear_data.exports.table_writer import TableWriter
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics


def export_lerobot(dataset: Dataset, destination: Path, options: ExportOptions) -> ExportedFiles:
    """Writes a folder as `LeRobotDataset(repo_id, root=...)` reads it, without videos.

    `timestamp` and `task_index` are the dataset's own where it has them; else the number of the step over `fps`, and
    the number of the episode's `task` in order of appearance. Episodes without a task have the empty text.

    Raises:
        InvalidArgumentError: no `fps` is given, and the source said none; `task_index` numbers no tasks.
        UnsupportedColumnError: see `features`.
    """
    fps = _fps(dataset, options)
    columns = features(dataset)
    tasks = _tasks(dataset)
    bar = progress_bar(dataset.num_steps, "export", "step", options.progress)
    with atomic_folder(destination) as folder, bar, _DataWriter(folder, dataset, columns, tasks, fps) as writer:
        for first, last in episode_blocks(dataset):
            writer.write(first, last)
            bar.update(int(dataset.offsets[last] - dataset.offsets[first]))
        write_meta(folder, dataset, columns, writer.made, writer.statistics(), tasks.texts, writer.files, fps)
    return exported_files(destination, [name for name in metadata_names(dataset) if name in LISTED])


def _fps(dataset: Dataset, options: ExportOptions) -> float:
    fps = options.fps if options.fps is not None else source_metadata(dataset).get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
        raise InvalidArgumentError(
            "LeRobot needs to know how many steps a second there are, and the dataset's source did not say",
            hint="give fps=30 (--fps 30)",
        )
    return int(fps) if float(fps).is_integer() else float(fps)


@dataclass(frozen=True)
class _Tasks:
    """Texts by `task_index`, and the number of each episode's; None where the dataset has a column of them."""

    texts: list[str]
    numbers: npt.NDArray[np.int64] | None


def _tasks(dataset: Dataset) -> _Tasks:
    values = ["" if text is None else text for text in dataset.episode_table.column("task").to_pylist()]
    if TASK not in dataset.schema:
        places = {text: i for i, text in enumerate(dict.fromkeys(values))}
        return _Tasks(list(places), np.array([places[text] for text in values], np.int64))
    texts: dict[int, str] = {}
    count = 0
    for first, last in episode_blocks(dataset):
        numbers = dataset.steps(TASK, first, last)
        # LeRobot looks a text up by its place, so there is one for every number below the largest.
        if numbers.min() < 0 or numbers.max() >= max(dataset.num_steps, 1 << 20):
            raise InvalidArgumentError(
                f"{numbers.min()} to {numbers.max()} are not numbers of tasks",
                hint=f"call '{TASK}' something else at conversion: --rename",
            )
        count = max(count, int(numbers.max()) + 1)
        begins = dataset.offsets[first:last] - dataset.offsets[first]
        for number, text in zip(numbers[begins].tolist(), values[first:last], strict=True):
            texts[number] = texts.get(number) or text
    return _Tasks([texts.get(i, "") for i in range(count)], None)


def _made_columns(dataset: Dataset) -> tuple[ColumnSpec, ...]:
    """LeRobot's own columns, those left out that the dataset brings along."""
    numbers = (ColumnSpec(name, "int64") for name in (*ORDER, TASK))
    specs = (ColumnSpec(CLOCK, "float32"), *numbers, ColumnSpec(DONE, "bool"))
    return tuple(spec for spec in specs if spec.name not in dataset.schema)


class _DataWriter:
    """Writes data files of about 100 MB each, and keeps in mind which one each episode went to.

    Attributes:
        made: LeRobot's columns that the dataset has not.
        files: for each episode so far, the number of its file.
    """

    def __init__(self, folder: Path, dataset: Dataset, columns: list[Feature], tasks: _Tasks, fps: float) -> None:
        self.made = _made_columns(dataset)
        self.files: list[int] = []
        self._folder = folder
        self._dataset = dataset
        self._columns = columns
        self._tasks = tasks
        self._fps = fps
        self._running = RunningStatistics(Schema(self.made))
        self._writer: TableWriter | None = None
        self._file = -1
        self._bytes = 0

    def __enter__(self) -> _DataWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def write(self, first: int, last: int) -> None:
        """Writes whole episodes into one file. One that is larger than a file should be has one alone."""
        dataset, lengths = self._dataset, self._dataset.lengths[first:last]
        size, steps = int(dataset.sizes(first, last).sum()), int(lengths.sum())
        if self._bytes + size > DATA_MB << 20:
            self._close()
        self._bytes += size
        made = self._made_values(first, last)
        self._running.update(made, lengths)
        own = {feature.name: _values(dataset, feature.spec, first, last) for feature in self._columns}
        rows = max(1, steps * BLOCK_BYTES // max(1, size))
        for start in range(0, steps, rows):
            part = slice(start, min(steps, start + rows))
            arrays = {feature.name: feature.to_arrow(own[feature.name][part]) for feature in self._columns}
            arrays.update({name: pa.array(values[part]) for name, values in made.items()})
            self._write_table(pa.table(arrays))
        self.files += [self._file] * (last - first)

    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Of the columns in `made`, over all that was written. Ends the writing."""
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

    def _made_values(self, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
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
        if self._tasks.numbers is not None:
            values[TASK] = np.repeat(self._tasks.numbers[first:last], lengths)
        return {spec.name: values[spec.name] for spec in self.made}


def _values(dataset: Dataset, spec: ColumnSpec, first: int, last: int) -> Any:
    return (dataset.values if spec.variable_length else dataset.steps)(spec.name, first, last)
