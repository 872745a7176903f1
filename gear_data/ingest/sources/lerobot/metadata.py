"""What the files under `meta/` of a LeRobot dataset say: the dataset, its tasks, its episodes.

Layouts: https://github.com/huggingface/lerobot, `lerobot/datasets/utils.py` and `lerobot_dataset.py` (v3.0), and
`lerobot/datasets/v30/convert_dataset_v21_to_v30.py`, which describes v2.1 beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.json_files import read_json_lines, read_json_object
from gear_data.ingest.sources.tables.parquet_stream import ParquetTables
from gear_data.storage.block import BEGIN, END

INFO = "meta/info.json"
#: Where v1 kept it.
OLD_INFO = "meta_data/info.json"
_TASKS_V2, _TASKS_V3 = "meta/tasks.jsonl", "meta/tasks.parquet"
_EPISODES_V2, _EPISODES_V3 = "meta/episodes.jsonl", "meta/episodes/"
#: Columns of the episode list that say where in LeRobot's own files an episode stands, or hold its statistics.
_PLACES = ("stats/", "data/", "meta/", "videos/", "dataset_from_index", "dataset_to_index")
_STRUCTURE = ("episode_index", "length", "tasks")
#: LeRobot's file of an episode (v2) or of several (v3), by its place.
_FILE_V2 = re.compile(r"data/chunk-\d+/episode_(\d+)\.parquet")
_FILE_V3 = re.compile(r"data/chunk-(\d+)/file-(\d+)\.parquet")


@dataclass(frozen=True)
class LeRobotInfo:
    """`meta/info.json`, as far as it is used.

    Attributes:
        name: of the file.
        version: such as `v2.1`.
        fps: frames per second; None where it gives no positive number.
        total_episodes, total_frames: None where it gives none.
        features: column name -> what is declared of it.
        facts: everything else in it that is one value.
    """

    name: str
    version: str
    fps: float | None
    total_episodes: int | None
    total_frames: int | None
    features: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]

    @property
    def major(self) -> int:
        """The version's first number; 0 where it has none."""
        found = re.match(r"v?(\d+)\.", self.version)
        return int(found[1]) if found else 0


def read_info(location: Location) -> LeRobotInfo | None:
    """None where there is no such file, or where it is of something else than LeRobot.

    Raises:
        CorruptSourceError: it is not a JSON object, or what it says has the wrong type.
    """
    file = location.file(INFO) or location.file(OLD_INFO)
    if file is None:
        return None
    values = read_json_object(file)
    if "codebase_version" not in values:
        return None
    features = values.get("features", {})
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise CorruptSourceError("should be an object of objects", file=file.name, column="features")
    fps = _number(values, "fps", file.name)
    return LeRobotInfo(
        name=file.name,
        version=str(values["codebase_version"]),
        fps=fps if fps is not None and fps > 0 else None,
        total_episodes=_count(values, "total_episodes", file.name),
        total_frames=_count(values, "total_frames", file.name),
        features=features,
        facts={name: value for name, value in values.items() if isinstance(value, str | int | float)},
    )


def _number(values: Mapping[str, Any], name: str, file: str) -> float | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise CorruptSourceError(f"should be a number, not {value!r:.40}", file=file, column=name)
    return value


def _count(values: Mapping[str, Any], name: str, file: str) -> int | None:
    value = _number(values, name, file)
    if value is not None and (not isinstance(value, int) or value < 0):
        raise CorruptSourceError(f"should be a count, not {value!r:.40}", file=file, column=name)
    return value


def read_tasks(location: Location, major: int) -> dict[int, str]:
    """`task_index` -> text; empty where there is no list of tasks.

    In v3 the texts are the index of a pandas table, in a column named `task` or, where the index had no name,
    `__index_level_0__`: whichever holds text is taken.

    Raises:
        CorruptSourceError: an entry lacks its number or its text.
    """
    name = _TASKS_V2 if major == 2 else _TASKS_V3
    file = location.file(name)
    if file is None:
        return {}
    if major == 2:
        lines = read_json_lines(file)
        return {_index(line, "task_index", name, i): _text(line, name, i) for i, line in enumerate(lines)}
    tables = ParquetTables((file,))
    texts = [field.name for field in tables.schema if _is_text(field.type)]
    if len(texts) != 1 or "task_index" not in tables.schema.names:
        raise CorruptSourceError("should have the column 'task_index' and one column of text", file=name)
    rows = _records(tables, ["task_index", texts[0]], name)
    tasks = [{"task_index": row["task_index"], "task": row[texts[0]]} for row in rows]
    return {_index(task, "task_index", name, i): _text(task, name, i) for i, task in enumerate(tasks)}


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _index(record: Mapping[str, Any], key: str, file: str, row: int) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise CorruptSourceError(f"should be a whole number, not {value!r:.40}", file=file, column=key, row=row)
    return value


def _text(record: Mapping[str, Any], file: str, row: int) -> str:
    value = record.get("task")
    if not isinstance(value, str):
        raise CorruptSourceError(f"should be text, not {value!r:.40}", file=file, column="task", row=row)
    return value


@dataclass(frozen=True)
class EpisodeList:
    """The list of episodes under `meta/`, in the order of their numbers.

    Attributes:
        name: of the file or folder it is in.
        ids: int64 [n], `episode_index`, rising.
        lengths: int64 [n], frames; -1 where the list does not say.
        ranges: int64 [n, 2], first global frame and the one after the last; None where the list has none.
        files: the Parquet file each is said to be in, as `data_file` gives it; None where the list does not say.
        tasks: n tuples of texts.
        facts: name -> n values, all else that is one value an episode.
        repeated: entries left out because an earlier one has their number.
    """

    name: str
    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64] | None = None
    files: tuple[tuple[int, ...], ...] | None = None
    tasks: tuple[tuple[str, ...], ...] = ()
    facts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    repeated: int = 0

    def find(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64 [k]: where each id stands in the list; -1 where it does not."""
        places = np.searchsorted(self.ids, ids)
        known = places < len(self.ids)
        known[known] = self.ids[places[known]] == ids[known]
        return np.where(known, places, -1).astype(np.int64)


def data_file(name: str, major: int) -> tuple[int, ...] | None:
    """What the name of a Parquet file says: the episode in it (v2), or its chunk and number (v3); None if neither."""
    found = (_FILE_V2 if major == 2 else _FILE_V3).fullmatch(name)
    return tuple(int(number) for number in found.groups()) if found else None


def read_episodes(location: Location, major: int) -> EpisodeList | None:
    """None where there is no list.

    Raises:
        CorruptSourceError: an entry lacks its number, or what it says has the wrong type.
    """
    if major == 2:
        file = location.file(_EPISODES_V2)
        return None if file is None else _listed(_EPISODES_V2, read_json_lines(file), _file_v2)
    files = tuple(file for file in location.with_suffix(".parquet") if file.name.startswith(_EPISODES_V3))
    if not files:
        return None
    records = (record for file in files for record in _listed_in(file))
    return _listed(_EPISODES_V3, records, _file_v3)


def _records(tables: ParquetTables, columns: list[str], name: str) -> Iterator[dict[str, Any]]:
    """The rows of a table of metadata. Raises CorruptSourceError for values that are none of their type."""
    tables.select(columns)
    for part in tables.parts(BEGIN, END):
        try:
            part.table.validate(full=True)
            yield from part.table.to_pylist()
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise CorruptSourceError(f"cannot be read: {error}", file=name, hint="download it again") from error


def _listed_in(file: SourceFile) -> Iterator[dict[str, Any]]:
    # Each file by itself: columns that are not read need not have one type everywhere.
    tables = ParquetTables((file,))
    # The statistics are most of the list's bytes.
    return _records(tables, [name for name in tables.schema.names if not name.startswith("stats/")], file.name)


def _file_v2(record: Mapping[str, Any], row: int) -> tuple[int, ...]:
    return (_index(record, "episode_index", _EPISODES_V2, row),)


def _file_v3(record: Mapping[str, Any], row: int) -> tuple[int, ...] | None:
    keys = ("data/chunk_index", "data/file_index")
    if not record.keys() >= set(keys):
        return None
    return tuple(_index(record, key, _EPISODES_V3, row) for key in keys)


def _listed(
    name: str,
    records: Iterable[Mapping[str, Any]],
    place: Callable[[Mapping[str, Any], int], tuple[int, ...] | None],
) -> EpisodeList:
    ids: dict[int, None] = {}
    lengths, ranges, files, tasks, repeated = [], [], [], [], 0
    facts: dict[str, list[Any]] = {}
    for row, record in enumerate(records):
        number = _index(record, "episode_index", name, row)
        if number in ids:
            repeated += 1
            continue
        ids[number] = None
        lengths.append(_index(record, "length", name, row) if record.get("length") is not None else -1)
        ranges.append(_range(record, name, row))
        files.append(place(record, row))
        tasks.append(_texts(record, name, row))
        for key, value in record.items():
            if key not in _STRUCTURE and not key.startswith(_PLACES) and isinstance(value, str | int | float):
                values = facts.setdefault(key, [])
                values.extend([None] * (len(ids) - 1 - len(values)))
                values.append(value)
    order = np.argsort(np.array(list(ids), np.int64), kind="stable")
    for values in facts.values():
        values.extend([None] * (len(ids) - len(values)))
    return EpisodeList(
        name=name,
        ids=np.array(list(ids), np.int64)[order],
        lengths=np.array(lengths, np.int64)[order],
        ranges=None if None in ranges else np.array(ranges, np.int64).reshape(-1, 2)[order],
        files=None if None in files else tuple(files[i] or () for i in order),
        tasks=tuple(tasks[i] for i in order),
        facts={key: tuple(values[i] for i in order) for key, values in facts.items()},
        repeated=repeated,
    )


def _range(record: Mapping[str, Any], name: str, row: int) -> tuple[int, int] | None:
    if record.get("dataset_from_index") is None or record.get("dataset_to_index") is None:
        return None
    return (
        _index(record, "dataset_from_index", name, row),
        _index(record, "dataset_to_index", name, row),
    )


def _texts(record: Mapping[str, Any], name: str, row: int) -> tuple[str, ...]:
    texts = record.get("tasks")
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CorruptSourceError(f"should be a list of texts, not {texts!r:.40}", file=name, column="tasks", row=row)
    return tuple(texts)
