"""Files under `meta/` of a LeRobot v3.0 dataset.

They are `info.json`, `stats.json`, and the tables of tasks and episodes.

Further files store data that LeRobot lacks and that an equal dataset needs; see
`gear_data.ingest.sources.lerobot.export_notes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.tables.metadata import episode_metadata
from gear_data.exports.exporter import episode_blocks
from gear_data.exports.lerobot.features import CLOCK, TASK, Feature, VideoFeature
from gear_data.exports.lerobot.videos.sampled_statistics import sampled_statistics
from gear_data.exports.lerobot.videos.video_writer import CHUNK_FILES, VIDEO_MB, VIDEO_PATH, WrittenVideos
from gear_data.exports.metadata import final_observations, source_metadata
from gear_data.exports.nested import nested_finals
from gear_data.exports.table_writer import TableWriter
from gear_data.ingest.sources.lerobot.export_notes import FINALS, NOTES, ExportNotes
from gear_data.ingest.sources.lerobot.metadata import SUBTASK, SUBTASKS
from gear_data.schema import ColumnSpec
from gear_data.storage.statistics import ColumnStatistics

#: Limit of a data file's column bytes in MB, LeRobot's default.
DATA_MB = 100
#: Columns of LeRobot's table of episodes. Episode metadata with these names is left out.
EPISODE_COLUMNS = ("episode_index", "tasks", "dataset_from_index", "dataset_to_index")
_VERSION = "v3.0"
_PATTERN = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODES = "meta/episodes/chunk-000/file-000.parquet"


def data_path(index: int) -> str:
    """Returns the path of a data file, relative to the LeRobot folder."""
    return f"data/{_PATTERN}".format(chunk_index=index // CHUNK_FILES, file_index=index % CHUNK_FILES)


@dataclass(frozen=True)
class DataFiles:
    """The data files of an export.

    Attributes:
        columns: features of the dataset's columns.
        generated: LeRobot's own columns that the dataset lacks.
        statistics: statistics of the generated columns.
        files: index of the data file of each episode.
    """

    columns: Sequence[Feature]
    generated: Sequence[ColumnSpec]
    statistics: Mapping[str, ColumnStatistics]
    files: Sequence[int]


def write_meta(
    folder: Path,
    dataset: Dataset,
    data: DataFiles,
    cameras: Sequence[VideoFeature],
    videos: Sequence[WrittenVideos],
    tasks: Sequence[str],
    fps: float,
) -> None:
    """Writes all files under `meta/`.

    Args:
        folder: folder of the LeRobot dataset.
        dataset: the exported dataset.
        data: the data files.
        cameras: features that are videos.
        videos: the video files of each camera.
        tasks: text of each `task_index`.
        fps: steps per second.
    """
    (folder / _EPISODES).parent.mkdir(parents=True)
    declared = {feature.name: feature.declared for feature in data.columns}
    pairs = zip(cameras, videos, strict=True)
    declared.update({camera.name: {**camera.declared, "info": video.info} for camera, video in pairs})
    declared.update({spec.name: {"dtype": spec.dtype, "shape": [1], "names": None} for spec in data.generated})
    info = {
        "codebase_version": _VERSION,
        "robot_type": source_metadata(dataset).get("robot_type"),
        "total_episodes": dataset.num_episodes,
        "total_frames": dataset.num_steps,
        "total_tasks": len(tasks),
        "chunks_size": CHUNK_FILES,
        "data_files_size_in_mb": DATA_MB,
        "video_files_size_in_mb": VIDEO_MB,
        "fps": fps,
        "splits": {"train": f"0:{dataset.num_episodes}"},
        "data_path": f"data/{_PATTERN}",
        "video_path": VIDEO_PATH if videos else None,
        "features": declared,
    }
    _write_json(folder / "meta/info.json", info)
    fixed = [feature for feature in data.columns if not feature.spec.variable_length]
    all_statistics = {**{feature.name: dataset.statistics[feature.spec.name] for feature in fixed}, **data.statistics}
    statistics = {name: _stats(dataset, each) for name, each in all_statistics.items()}
    # LeRobot's training needs statistics of each camera, also of those that are no videos.
    pictures: list[Feature | VideoFeature] = [*cameras]
    pictures += [feature for feature in data.columns if feature.declared["dtype"] == "image"]
    for picture in pictures:
        if values := sampled_statistics(dataset, picture.spec):
            statistics[picture.name] = values
    _write_json(folder / "meta/stats.json", statistics)
    _write_texts(folder / "meta/tasks.parquet", tasks, TASK)
    if subtasks := _subtasks(dataset):
        _write_texts(folder / SUBTASKS, subtasks, SUBTASK)
    _write_episodes(folder / _EPISODES, dataset, np.array(data.files, np.int64), videos, fps)
    finals = [feature for feature in data.columns if feature.spec.has_final]
    if finals:
        _write_finals(folder / FINALS, dataset, finals)
    notes = ExportNotes(
        added=tuple(
            spec.name for spec in data.generated if spec.name in (CLOCK, TASK) and spec.name not in dataset.schema
        ),
        vectors=tuple(feature.name for feature in data.columns if feature.spec.shape == (1,)),
        finals=tuple(feature.name for feature in finals),
    )
    _write_json(folder / NOTES, notes.to_json())


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")


def _stats(dataset: Dataset, found: ColumnStatistics) -> dict[str, Any]:
    numbers = {name: getattr(found, name).tolist() for name in ("min", "max", "mean", "std")}
    return {**numbers, "count": [dataset.num_steps]}


def _subtasks(dataset: Dataset) -> list[str]:
    """Returns the text of each `subtask_index`; empty without subtasks.

    The source's metadata has the texts. LeRobot looks up texts by position, so a number without a text gets the empty
    text.
    """
    texts = source_metadata(dataset).get("subtasks")
    if SUBTASK not in dataset.schema or not isinstance(texts, Mapping):
        return []
    numbers = [int(number) for number in texts if number.isdecimal() and int(number) < max(dataset.num_steps, 1 << 20)]
    return [str(texts.get(str(number), "")) for number in range(max(numbers, default=-1) + 1)]


def _write_texts(path: Path, texts: Sequence[str], number: str) -> None:
    """Writes the table of tasks or subtasks.

    pandas reads it with the texts as its index, as LeRobot expects.

    Args:
        path: the file.
        texts: the texts, in the order of their numbers.
        number: name of the column of numbers: `task_index` or `subtask_index`.
    """
    text = number.removesuffix("_index")
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
        for name, kind, dtype in ((number, "int64", "int64"), (text, "unicode", "object"))
    ]
    pandas = {"index_columns": [text], "column_indexes": [], "columns": columns, "pandas_version": None}
    table = pa.table({number: np.arange(len(texts)), text: pa.array(texts, pa.string())})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)


def _write_episodes(path: Path, dataset: Dataset, files: Any, videos: Sequence[WrittenVideos], fps: float) -> None:
    zeros = np.zeros(dataset.num_episodes, np.int64)
    metadata = episode_metadata(dataset, 0, dataset.num_episodes)
    texts = dataset.episode_table.column("task").to_pylist()
    columns: dict[str, Any] = {
        "episode_index": np.arange(dataset.num_episodes),
        "tasks": pa.array([["" if text is None else text] for text in texts], pa.list_(pa.string())),
        "length": dataset.lengths,
        "data/chunk_index": files // CHUNK_FILES,
        "data/file_index": files % CHUNK_FILES,
        "meta/episodes/chunk_index": zeros,
        "meta/episodes/file_index": zeros,
        "dataset_from_index": dataset.offsets[:-1],
        "dataset_to_index": dataset.offsets[1:],
    }
    for video in videos:
        prefix = f"videos/{video.key}"
        columns[f"{prefix}/chunk_index"] = video.file // CHUNK_FILES
        columns[f"{prefix}/file_index"] = video.file % CHUNK_FILES
        columns[f"{prefix}/from_timestamp"] = video.start
        columns[f"{prefix}/to_timestamp"] = video.start + dataset.lengths / fps
    extra = {name: values for name, values in metadata.items() if name not in (*EPISODE_COLUMNS, "task")}
    pq.write_table(pa.table({**extra, **columns}), path)


def _write_finals(path: Path, dataset: Dataset, finals: Sequence[Feature]) -> None:
    with TableWriter(path) as writer:
        for first, last in episode_blocks(dataset):
            found = final_observations(dataset, first, last)
            columns: dict[str, Any] = {"episode_index": np.arange(first, last)}
            columns.update({feature.name: nested_finals(found, feature.spec) for feature in finals})
            writer.write(pa.table(columns))
