"""LeRobot's `meta/info.json` and its lists of tasks and subtasks.

Layouts: https://github.com/huggingface/lerobot, `lerobot/datasets/utils.py` and `lerobot_dataset.py` (v3.0), and
`lerobot/datasets/v30/convert_dataset_v21_to_v30.py`, which also describes v2.1. Subtasks:
`dataset_subtask.mdx` in its documentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.json_files import read_json_lines, read_json_object
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.parquet import PARQUET
from gear_data.ingest.sources.tables.recognise import is_text
from gear_data.storage.episode_block import BEGIN, END

INFO = "meta/info.json"
#: Path of the file in v1.
OLD_INFO = "meta_data/info.json"
#: Hint of errors about metadata, which `step-rows` does not read.
ROWS_ONLY = "convert only the rows: the folder data/ with --format step-rows"
HINT = f"correct the file, or {ROWS_ONLY}"
#: Columns of the number of each frame's task and subtask.
TASK, SUBTASK = "task_index", "subtask_index"
SUBTASKS = "meta/subtasks.parquet"
#: Columns of rows of text, with a role and a style: the rows of the whole episode in every frame, and those of a frame.
PERSISTENT, EVENTS = "language_persistent", "language_events"
_TASKS_V2, _TASKS_V3 = "meta/tasks.jsonl", "meta/tasks.parquet"


@dataclass(frozen=True)
class LeRobotInfo:
    """The used contents of `meta/info.json`.

    Attributes:
        name: the name of the file.
        version: the version of the layout, such as `v2.1`.
        fps: frames per second; None if the file gives no positive number.
        total_episodes: declared number of episodes; None if missing.
        total_frames: declared number of frames; None if missing.
        features: column name -> its declaration.
        facts: all other single values.
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
        """The first number of the version; 0 if there is no number."""
        match = re.match(r"v?(\d+)\.", self.version)
        return int(match[1]) if match else 0


def read_info(location: Location) -> LeRobotInfo | None:
    """Reads `meta/info.json`; None if it is missing or not LeRobot's.

    Raises:
        CorruptSourceError: the file is not a JSON object, or a value has the wrong type.
    """
    file = location.file(INFO) or location.file(OLD_INFO)
    if file is None:
        return None
    values = read_json_object(file)
    if "codebase_version" not in values:
        return None
    features = values.get("features", {})
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise CorruptSourceError("should be an object of objects", file=file.name, column="features", hint=HINT)
    fps = read_value(values, "fps", file.name, kind="a number", optional=True)
    return LeRobotInfo(
        name=file.name,
        version=str(values["codebase_version"]),
        fps=fps if fps is not None and fps > 0 else None,
        total_episodes=read_value(values, "total_episodes", file.name, kind="a count", optional=True),
        total_frames=read_value(values, "total_frames", file.name, kind="a count", optional=True),
        features=features,
        facts={name: value for name, value in values.items() if isinstance(value, str | int | float)},
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: What a value of the metadata should be, as errors say it -> whether it is.
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "a number": _is_number,
    "a count": lambda value: type(value) is int and value >= 0,
    "a whole number": lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
    "a time in seconds": lambda value: _is_number(value) and math.isfinite(value) and value >= 0,
    "text": lambda value: isinstance(value, str),
    "a list of texts": lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
}


def read_value(
    record: Mapping[str, Any],
    key: str,
    file: str,
    row: int | None = None,
    *,
    kind: str = "a whole number",
    optional: bool = False,
) -> Any:
    """Returns a value of the metadata; None for a missing one if it is optional.

    Args:
        record: the values by key.
        key: the key.
        file, row: the place of the record, for the error.
        kind: what the value should be, one of `_KINDS`.
        optional: whether the value may be missing or null.

    Raises:
        CorruptSourceError: the value is of another kind.
    """
    value = record.get(key)
    if (value is None and optional) or _KINDS[kind](value):
        return value
    raise CorruptSourceError(f"should be {kind}, not {value!r:.40}", file=file, column=key, row=row, hint=HINT)


def read_tasks(location: Location, major: int) -> dict[int, str]:
    """Returns `task_index` -> text; empty if there is no list of tasks.

    Raises:
        CorruptSourceError: an entry lacks its number or its text.
    """
    if major != 2:
        return _read_texts(location, _TASKS_V3, TASK)
    file = location.file(_TASKS_V2)
    return {} if file is None else _numbered(read_json_lines(file), _TASKS_V2, TASK, "task")


def read_subtasks(location: Location) -> dict[int, str]:
    """Returns `subtask_index` -> text; empty if there is no list of subtasks.

    Raises:
        CorruptSourceError: an entry lacks its number or its text.
    """
    return _read_texts(location, SUBTASKS, SUBTASK)


def _read_texts(location: Location, name: str, number: str) -> dict[int, str]:
    """Returns number -> text of a table of metadata; empty if the file is missing.

    The texts are the index of a pandas table. Its column is named `task` or `subtask`, or `__index_level_0__` if the
    index has no name. So the one column that holds text is taken.
    """
    file = location.file(name)
    if file is None:
        return {}
    tables = FileTables((file,), PARQUET)
    texts = [field.name for field in tables.schema if is_text(field.type)]
    if len(texts) != 1 or number not in tables.schema.names:
        raise CorruptSourceError(f"should have the column '{number}' and one column of text", file=name, hint=HINT)
    return _numbered(read_records(tables, [number, texts[0]], name), name, number, texts[0])


def _numbered(records: Iterable[Mapping[str, Any]], name: str, number: str, text: str) -> dict[int, str]:
    return {
        read_value(item, number, name, i): read_value(item, text, name, i, kind="text")
        for i, item in enumerate(records)
    }


def read_records(tables: FileTables, columns: list[str], name: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table of metadata.

    Args:
        tables: the table.
        columns: the columns to read.
        name: the name of the file, for the error.

    Raises:
        CorruptSourceError: a value does not have its column's type.
    """
    tables.select(columns)
    for part in tables.parts(BEGIN, END):
        try:
            part.table.validate(full=True)
            yield from part.table.to_pylist()
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise CorruptSourceError(f"cannot be read: {error}", file=name, hint=HINT) from error


_EPISODES_V2, _EPISODES_V3 = "meta/episodes.jsonl", "meta/episodes/"
#: Prefix of the columns that say where an episode's frames are.
VIDEOS = "videos/"
#: The columns of an episode's global frames.
_RANGE = ("dataset_from_index", "dataset_to_index")
#: Prefixes of columns that hold positions in LeRobot's files, or statistics.
_NOT_FACTS = ("stats/", "data/", "meta/", VIDEOS, *_RANGE)
_STRUCTURE = ("episode_index", "length", "tasks")
#: LeRobot's file of one episode (v2) or of several episodes (v3).
_FILE_V2 = re.compile(r"data/chunk-\d+/episode_(\d+)\.parquet")
_FILE_V3 = re.compile(r"data/chunk-(\d+)/file-(\d+)\.parquet")


@dataclass(frozen=True)
class EpisodeList:
    """The list of n episodes under `meta/`, sorted by their numbers.

    Attributes:
        name: the file or folder that holds the list.
        ids: int64 [n], `episode_index`, rising.
        lengths: int64 [n], frames; -1 if the list does not say.
        ranges: int64 [n, 2], the global frames [first, last); None if the list has none.
        files: key of the Parquet file of each episode, as in `data_file_key`; None if the list has none.
        tasks: n tuples of texts.
        facts: name -> n values, all other single values and lists of them.
        videos: name -> n values, the columns that begin with `VIDEOS` (v3). A value may be of any type.
        repeated: number of entries ignored because an earlier entry has their number.
    """

    name: str
    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64] | None = None
    files: tuple[tuple[int, ...], ...] | None = None
    tasks: tuple[tuple[str, ...], ...] = ()
    facts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    videos: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    repeated: int = 0

    def find(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns int64 [k]: the index of each id in the list; -1 if it is missing."""
        indices = np.searchsorted(self.ids, ids)
        known = indices < len(self.ids)
        known[known] = self.ids[indices[known]] == ids[known]
        return np.where(known, indices, -1).astype(np.int64)


def data_file_key(name: str, major: int) -> tuple[int, ...] | None:
    """Parses the name of a Parquet file.

    Returns:
        The episode's number (v2), or the chunk and the file number (v3); None for another name.
    """
    match = (_FILE_V2 if major == 2 else _FILE_V3).fullmatch(name)
    return tuple(int(number) for number in match.groups()) if match else None


def read_episode_list(location: Location, major: int) -> EpisodeList | None:
    """Reads the list of episodes; None if there is no list.

    Raises:
        CorruptSourceError: an entry lacks its number, or a value has the wrong type.
    """
    if major == 2:
        file = location.file(_EPISODES_V2)
        return None if file is None else _build_list(_EPISODES_V2, read_json_lines(file), ("episode_index",))
    files = tuple(file for file in location.with_suffix(".parquet") if file.name.startswith(_EPISODES_V3))
    if not files:
        return None
    records = (record for file in files for record in _file_records(file))
    return _build_list(_EPISODES_V3, records, ("data/chunk_index", "data/file_index"))


def _file_records(file: SourceFile) -> Iterator[dict[str, Any]]:
    # One stream per file: columns that are not read may have different types.
    tables = FileTables((file,), PARQUET)
    # The statistics are most of the list's bytes.
    return read_records(tables, [name for name in tables.schema.names if not name.startswith("stats/")], file.name)


def _build_list(name: str, records: Iterable[Mapping[str, Any]], file_key: Sequence[str]) -> EpisodeList:
    """Builds the list from its records.

    Args:
        name: the file or folder that holds the list.
        records: one record per episode.
        file_key: the numbers of a record that name the episode's Parquet file.
    """

    def numbers(keys: Sequence[str], is_known: bool) -> tuple[int, ...] | None:
        return tuple(read_value(record, key, name, row) for key in keys) if is_known else None

    ids: dict[int, None] = {}
    lengths, ranges, files, tasks, repeated = [], [], [], [], 0
    facts: dict[str, list[Any]] = {}
    videos: dict[str, list[Any]] = {}
    for row, record in enumerate(records):
        number = read_value(record, "episode_index", name, row)
        if number in ids:
            repeated += 1
            continue
        ids[number] = None
        length = read_value(record, "length", name, row, optional=True)
        lengths.append(-1 if length is None else length)
        ranges.append(numbers(_RANGE, all(record.get(key) is not None for key in _RANGE)))
        files.append(numbers(file_key, record.keys() >= {*file_key}))
        tasks.append(tuple(read_value(record, "tasks", name, row, kind="a list of texts", optional=True) or ()))
        for key, value in record.items():
            if key.startswith(VIDEOS):
                _put(videos, key, len(ids) - 1, value)
            elif key not in _STRUCTURE and not key.startswith(_NOT_FACTS) and _is_fact(value):
                _put(facts, key, len(ids) - 1, value)
    order = np.argsort(np.array(list(ids), np.int64), kind="stable")
    for values in (*facts.values(), *videos.values()):
        values.extend([None] * (len(ids) - len(values)))
    return EpisodeList(
        name=name,
        ids=np.array(list(ids), np.int64)[order],
        lengths=np.array(lengths, np.int64)[order],
        ranges=None if None in ranges else np.array(ranges, np.int64).reshape(-1, 2)[order],
        files=None if None in files else tuple(files[i] or () for i in order),
        tasks=tuple(tasks[i] for i in order),
        facts={key: tuple(values[i] for i in order) for key, values in facts.items()},
        videos={key: tuple(values[i] for i in order) for key, values in videos.items()},
        repeated=repeated,
    )


def _put(columns: dict[str, list[Any]], name: str, row: int, value: Any) -> None:
    """Sets the value of a row; rows that a column skipped get None."""
    values = columns.setdefault(name, [])
    values.extend([None] * (row - len(values)))
    values.append(value)


def _is_fact(value: Any) -> bool:
    """Returns whether a value is a text, number, flag, or a list of one kind."""
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        return bool(value) and (kinds <= {int, float} or kinds in ({str}, {bool}))
    return isinstance(value, str | int | float)
