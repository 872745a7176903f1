"""Dataset -> LeRobot v3.0: `data/chunk-000/file-000.parquet` with a row a step, and what is known of it under `meta/`.

Layout: https://github.com/huggingface/lerobot (`lerobot/datasets/utils.py` and `lerobot_dataset.py`, 0.4.4). What LeRobot
has no place for and conversion needs to give an equal dataset again stands in files that it does not look at, see
`gear_data.ingest.lerobot_notes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.exports.exporter import BLOCK_BYTES, Exported, ExportOptions, episode_blocks, report
from gear_data.exports.facts import episode_facts, episode_finals, source_metadata
from gear_data.exports.folder import whole_folder
from gear_data.exports.lerobot_features import CLOCK, DONE, ORDER, TASK, Feature, clock, features, frame_numbers
from gear_data.exports.nested import nullable_rows
from gear_data.ingest.lerobot_notes import FINALS, NOTES, LerobotNotes
from gear_data.progress import progress_bar
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics

_VERSION = "v3.0"
_CHUNK_FILES = 1000
_DATA_MB = 100
_VIDEO_MB = 200
_PATTERN = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_EPISODES = f"meta/episodes/{_PATTERN}.parquet"
#: Columns that LeRobot's own list of episodes has; facts of these names are left out.
_LISTED = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index", "task")
_PLACES = ("data/chunk_index", "data/file_index", "meta/episodes/chunk_index", "meta/episodes/file_index")


def export_lerobot(dataset: Dataset, destination: Path, options: ExportOptions) -> Exported:
    """Writes a folder as `LeRobotDataset(repo_id, root=...)` reads it, without videos.

    `timestamp` and `task_index` are the dataset's own where it has them; else the number of the step over `fps`, and
    the number of the episode's `task` in order of appearance. Episodes without a task have the empty text.

    Raises:
        InvalidArgumentError: no `fps` is given, and the source said none.
        UnsupportedColumnError: see `features`.
    """
    fps = _fps(dataset, options)
    columns = features(dataset)
    tasks = _tasks(dataset)
    with (
        whole_folder(destination) as folder,
        progress_bar(dataset.num_steps, "export", "step", options.progress) as bar,
    ):
        writer = _DataWriter(folder, dataset, columns, fps, tasks)
        for first, last in episode_blocks(dataset):
            writer.write(first, last)
            bar.update(int(dataset.offsets[last] - dataset.offsets[first]))
        writer.close()
        _write_meta(folder, dataset, columns, writer, fps)
    facts = episode_facts(dataset, 0, 0)
    return report(destination, [name for name in facts if name in _LISTED and name != "task"])


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
    table = dataset.episode_table
    values = ["" if text is None else text for text in table.column("task").to_pylist()]
    if TASK not in dataset.schema:
        places = {text: i for i, text in enumerate(dict.fromkeys(values))}
        return _Tasks(list(places), np.array([places[text] for text in values], np.int64))
    texts: dict[int, str] = {}
    last = -1
    for first, stop in episode_blocks(dataset):
        numbers = dataset.steps(TASK, first, stop)
        begins = dataset.offsets[first:stop] - dataset.offsets[first]
        for number, text in zip(numbers[begins].tolist(), values[first:stop], strict=True):
            texts[number] = texts.get(number) or text
        last = max(last, int(numbers.max()))
        if numbers.min() < 0 or last > dataset.num_steps:
            raise InvalidArgumentError(
                f"column '{TASK}' is not the number of a task", hint="rename it at conversion: --rename"
            )
    return _Tasks([texts.get(i, "") for i in range(last + 1)], None)


@dataclass
class _DataWriter:
    """Writes data files of about 100 MB each, and keeps in mind where each episode went."""

    folder: Path
    dataset: Dataset
    columns: list[Feature]
    fps: float
    tasks: _Tasks
    statistics: RunningStatistics = field(init=False)
    files: list[int] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _file: int = -1
    _bytes: int = 0

    def __post_init__(self) -> None:
        self.made = [spec for spec in _made(self.dataset)]
        self.statistics = RunningStatistics(Schema(tuple(self.made)))

    def write(self, first: int, last: int) -> None:
        """Writes whole episodes. An episode larger than a file has one alone."""
        size = int(self.dataset.sizes(first, last).sum())
        lengths = self.dataset.lengths[first:last]
        made = self._made_values(first, last)
        self.statistics.update({spec.name: made[spec.name] for spec in self.made}, lengths)
        if self._writer is not None and self._bytes + size > _DATA_MB << 20:
            self.close()
        self._bytes += size
        values = {feature.name: self._values(feature.spec, first, last) for feature in self.columns}
        steps = int(lengths.sum())
        rows = max(1, int(steps * BLOCK_BYTES / max(1, size)))
        for start in range(0, steps, rows):
            part = slice(start, min(steps, start + rows))
            arrays = {feature.name: feature.to_arrow(values[feature.name][part]) for feature in self.columns}
            table = pa.table({**arrays, **{name: pa.array(array[part]) for name, array in made.items()}})
            if self._writer is None:
                self._file += 1
                path = self.folder / f"data/{_place(self._file)}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = pq.ParquetWriter(path, table.schema)
            self._writer.write_table(table)
        self.files += [self._file] * (last - first)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._bytes = None, 0

    def _values(self, spec: ColumnSpec, first: int, last: int) -> Any:
        if spec.variable_length:
            return self.dataset.values(spec.name, first, last)
        return self.dataset.steps(spec.name, first, last)

    def _made_values(self, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
        """LeRobot's own columns, as far as the dataset has none of them."""
        dataset, lengths = self.dataset, self.dataset.lengths[first:last]
        terminated, truncated = (dataset.steps(name, first, last) for name in ("terminated", "truncated"))
        values = {
            CLOCK: clock(lengths, self.fps),
            "frame_index": frame_numbers(lengths),
            "episode_index": np.repeat(np.arange(first, last), lengths),
            "index": np.arange(int(dataset.offsets[first]), int(dataset.offsets[last])),
            DONE: terminated | truncated,
        }
        if self.tasks.numbers is not None:
            values[TASK] = np.repeat(self.tasks.numbers[first:last], lengths)
        return {spec.name: values[spec.name] for spec in self.made}


def _made(dataset: Dataset) -> list[ColumnSpec]:
    specs = [ColumnSpec(CLOCK, "float32"), *(ColumnSpec(name, "int64") for name in (*ORDER, TASK))]
    return [spec for spec in (*specs, ColumnSpec(DONE, "bool")) if spec.name not in dataset.schema]


def _place(number: int) -> str:
    return _PATTERN.format(chunk_index=number // _CHUNK_FILES, file_index=number % _CHUNK_FILES)


def _write_meta(folder: Path, dataset: Dataset, columns: list[Feature], writer: _DataWriter, fps: float) -> None:
    (folder / "meta/episodes").mkdir(parents=True)
    _write_tasks(folder / "meta/tasks.parquet", writer.tasks.texts)
    _write_episodes(folder, dataset, writer)
    own = {spec.name: {"dtype": spec.dtype, "shape": [1], "names": None} for spec in writer.made}
    source = source_metadata(dataset)
    info = {
        "codebase_version": _VERSION,
        "robot_type": source.get("robot_type"),
        "total_episodes": dataset.num_episodes,
        "total_frames": dataset.num_steps,
        "total_tasks": len(writer.tasks.texts),
        "chunks_size": _CHUNK_FILES,
        "data_files_size_in_mb": _DATA_MB,
        "video_files_size_in_mb": _VIDEO_MB,
        "fps": fps,
        "splits": {"train": f"0:{dataset.num_episodes}"},
        "data_path": f"data/{_PATTERN}.parquet",
        "video_path": None,
        "features": {**{feature.name: feature.declared for feature in columns}, **own},
    }
    _write_json(folder / "meta/info.json", info)
    found: Mapping[str, ColumnStatistics] = {**dataset.statistics, **writer.statistics.result()}
    names = {feature.spec.name: feature.name for feature in columns} | {spec.name: spec.name for spec in writer.made}
    _write_json(
        folder / "meta/stats.json",
        {
            name: {key: getattr(found[column], key).tolist() for key in ("min", "max", "mean", "std")}
            | {"count": [dataset.num_steps]}
            for column, name in names.items()
            if column in found
        },
    )
    finals = [feature for feature in columns if feature.spec.has_final]
    if finals:
        _write_finals(folder / FINALS, dataset, finals)
    made = tuple(name for name in (CLOCK, TASK) if name not in dataset.schema)
    vectors = tuple(feature.name for feature in columns if feature.spec.shape == (1,))
    _write_json(folder / NOTES, LerobotNotes(made, vectors, tuple(feature.name for feature in finals)).to_json())


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")


def _write_tasks(path: Path, texts: list[str]) -> None:
    """As a pandas table with the texts as its index, which is how LeRobot looks them up."""
    import pandas

    pandas.DataFrame({TASK: np.arange(len(texts))}, index=pandas.Index(texts, name="task")).to_parquet(path)


def _write_episodes(folder: Path, dataset: Dataset, writer: _DataWriter) -> None:
    path = folder / _EPISODES.format(chunk_index=0, file_index=0)
    path.parent.mkdir(parents=True)
    files = np.array(writer.files, np.int64)
    count = dataset.num_episodes
    zeros = np.zeros(count, np.int64)
    texts = dataset.episode_table.column("task").to_pylist()
    columns: dict[str, Any] = {
        "episode_index": np.arange(count),
        "tasks": pa.array([["" if text is None else text] for text in texts], pa.list_(pa.string())),
        "length": dataset.lengths,
        **dict(zip(_PLACES, (files // _CHUNK_FILES, files % _CHUNK_FILES, zeros, zeros), strict=True)),
        "dataset_from_index": dataset.offsets[:-1],
        "dataset_to_index": dataset.offsets[1:],
    }
    facts = episode_facts(dataset, 0, count)
    pq.write_table(pa.table({**{name: facts[name] for name in facts if name not in _LISTED}, **columns}), path)


def _write_finals(path: Path, dataset: Dataset, finals: list[Feature]) -> None:
    writer: pq.ParquetWriter | None = None
    try:
        for first, last in episode_blocks(dataset):
            found = episode_finals(dataset, first, last)
            table = pa.table(
                {
                    "episode_index": np.arange(first, last),
                    **{
                        feature.name: nullable_rows(
                            [None if final is None else final[feature.spec.name] for final in found], feature.spec
                        )
                        for feature in finals
                    },
                }
            )
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
