"""LeRobot's list of episodes: `meta/episodes.jsonl` (v2), `meta/episodes/` (v3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.json_files import read_json_lines
from gear_data.ingest.sources.lerobot.metadata import misread, read_int, read_records
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.parquet import PARQUET

_EPISODES_V2, _EPISODES_V3 = "meta/episodes.jsonl", "meta/episodes/"
#: Prefix of the columns that say where an episode's frames are.
VIDEOS = "videos/"
#: Prefixes of columns that hold positions in LeRobot's files, or statistics.
_NOT_FACTS = ("stats/", "data/", "meta/", VIDEOS, "dataset_from_index", "dataset_to_index")
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
        return None if file is None else _build_list(_EPISODES_V2, read_json_lines(file), _file_key_v2)
    files = tuple(file for file in location.with_suffix(".parquet") if file.name.startswith(_EPISODES_V3))
    if not files:
        return None
    records = (record for file in files for record in _file_records(file))
    return _build_list(_EPISODES_V3, records, _file_key_v3)


def _file_records(file: SourceFile) -> Iterator[dict[str, Any]]:
    # One stream per file: columns that are not read may have different types.
    tables = FileTables((file,), PARQUET)
    # The statistics are most of the list's bytes.
    return read_records(tables, [name for name in tables.schema.names if not name.startswith("stats/")], file.name)


def _file_key_v2(record: Mapping[str, Any], row: int) -> tuple[int, ...]:
    return (read_int(record, "episode_index", _EPISODES_V2, row),)


def _file_key_v3(record: Mapping[str, Any], row: int) -> tuple[int, ...] | None:
    keys = ("data/chunk_index", "data/file_index")
    if not record.keys() >= set(keys):
        return None
    return tuple(read_int(record, key, _EPISODES_V3, row) for key in keys)


def _build_list(
    name: str,
    records: Iterable[Mapping[str, Any]],
    file_key: Callable[[Mapping[str, Any], int], tuple[int, ...] | None],
) -> EpisodeList:
    """Builds the list from its records.

    Args:
        name: the file or folder that holds the list.
        records: one record per episode.
        file_key: returns the key of an episode's Parquet file, from its record and row.
    """
    ids: dict[int, None] = {}
    lengths, ranges, files, tasks, repeated = [], [], [], [], 0
    facts: dict[str, list[Any]] = {}
    videos: dict[str, list[Any]] = {}
    for row, record in enumerate(records):
        number = read_int(record, "episode_index", name, row)
        if number in ids:
            repeated += 1
            continue
        ids[number] = None
        lengths.append(read_int(record, "length", name, row) if record.get("length") is not None else -1)
        ranges.append(_frame_range(record, name, row))
        files.append(file_key(record, row))
        tasks.append(_tasks(record, name, row))
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


def _frame_range(record: Mapping[str, Any], name: str, row: int) -> tuple[int, int] | None:
    if record.get("dataset_from_index") is None or record.get("dataset_to_index") is None:
        return None
    return (
        read_int(record, "dataset_from_index", name, row),
        read_int(record, "dataset_to_index", name, row),
    )


def _tasks(record: Mapping[str, Any], name: str, row: int) -> tuple[str, ...]:
    texts = record.get("tasks")
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise misread("a list of texts", texts, name, "tasks", row)
    return tuple(texts)
