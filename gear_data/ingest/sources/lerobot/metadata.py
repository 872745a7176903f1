"""LeRobot's `meta/info.json` and its lists of tasks and subtasks.

Layouts: https://github.com/huggingface/lerobot, `lerobot/datasets/utils.py` and `lerobot_dataset.py` (v3.0), and
`lerobot/datasets/v30/convert_dataset_v21_to_v30.py`, which also describes v2.1. Subtasks:
`dataset_subtask.mdx` in its documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import Location
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


def _count(values: Mapping[str, Any], name: str, file: str) -> int | None:
    value = _number(values, name, file)
    if value is not None and (not isinstance(value, int) or value < 0):
        raise misread("a count", value, file, name)
    return value


def _number(values: Mapping[str, Any], name: str, file: str) -> float | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise misread("a number", value, file, name)
    return value


def misread(expected: str, value: object, file: str, column: str, row: int | None = None) -> CorruptSourceError:
    """Returns the error about a value of the metadata that is not what it should be."""
    return CorruptSourceError(f"should be {expected}, not {value!r:.40}", file=file, column=column, row=row, hint=HINT)


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
    return {read_int(item, number, name, i): _read_text(item, text, name, i) for i, item in enumerate(records)}


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


def read_int(record: Mapping[str, Any], key: str, file: str, row: int) -> int:
    """Returns an int64 of a record. Raises CorruptSourceError for other values."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise misread("a whole number", value, file, key, row)
    return value


def _read_text(record: Mapping[str, Any], key: str, file: str, row: int) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise misread("text", value, file, key, row)
    return value
