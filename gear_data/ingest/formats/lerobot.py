"""LeRobot v2.1: a Parquet file an episode, a row a frame, and JSON files under `meta/`.

Layout: https://github.com/huggingface/lerobot (`meta/info.json`, `meta/tasks.jsonl`, `meta/episodes.jsonl`,
`data/chunk-000/episode_000000.parquet`). The rows' own `episode_index` is trusted over the metadata; where the
two differ, a finding says so.
"""

from __future__ import annotations

import json
from typing import Any

from gear_data.errors import CorruptSourceError, UnknownFormatError
from gear_data.ingest.arrow_tables import ParquetTables
from gear_data.ingest.findings import Finding
from gear_data.ingest.formats.step_rows import StepRows
from gear_data.ingest.location import Location
from gear_data.ingest.source import Format, SourceOptions

_INFO = "meta/info.json"
_TASKS = "meta/tasks.jsonl"
_KEPT_INFO = ("codebase_version", "robot_type", "fps", "total_episodes", "total_frames", "license")


def probe(location: Location) -> str | None:
    if location.file(_INFO) is None or not _data_files(location):
        return None
    version = _read_info(location).get("codebase_version", "of unknown version")
    return f"a LeRobot dataset {version}: it has {_INFO}"


def open_(location: Location, options: SourceOptions) -> StepRows:
    if location.file(_INFO) is None or not _data_files(location):
        raise UnknownFormatError(f"no {_INFO} with Parquet files under data/", file=location.name)
    info = _read_info(location)
    version = str(info.get("codebase_version", ""))
    if not version.startswith("v2"):
        raise UnknownFormatError(
            f"LeRobot {version} is not supported; v2.0 and v2.1 are",
            file=location.name,
            hint="the rows alone can be read with --format step-rows",
        )
    tasks = _read_tasks(location)
    tables = ParquetTables(_data_files(location))
    tables.num_rows = info.get("total_frames")
    metadata = {key: info[key] for key in _KEPT_INFO if key in info}
    source = StepRows(location, tables, options, tasks=tasks, metadata=metadata)
    for name, feature in info.get("features", {}).items():
        if name not in tables.schema.names:
            kind = feature.get("dtype", "column")
            message = f"declared in {_INFO} as {kind}, and not in the Parquet files; left out"
            source.findings.add(Finding("declared-column-absent", message, file=_INFO, column=name))
    declared = int(info.get("total_episodes", 0))
    present = len(_data_files(location))
    if declared != present:
        message = f"{_INFO} declares {declared} episodes, there are {present} files; the files are read"
        source.findings.add(Finding("metadata-disagrees", message, file=_INFO))
    return source


def _data_files(location: Location) -> tuple[Any, ...]:
    return tuple(file for file in location.with_suffix(".parquet") if file.name.startswith("data/"))


def _read_info(location: Location) -> dict[str, Any]:
    file = location.file(_INFO)
    if file is None:
        return {}
    with file.open() as stream:
        text = stream.read()
    try:
        info = json.loads(text)
    except ValueError as error:
        raise CorruptSourceError(f"not JSON: {error}", file=_INFO) from error
    if not isinstance(info, dict):
        raise CorruptSourceError("not a JSON object", file=_INFO)
    return info


def _read_tasks(location: Location) -> dict[int, str]:
    file = location.file(_TASKS)
    if file is None:
        return {}
    with file.open() as stream:
        lines = stream.read().splitlines()
    try:
        tasks = [json.loads(line) for line in lines if line.strip()]
        return {int(task["task_index"]): str(task["task"]) for task in tasks}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptSourceError(f"not JSON lines of tasks: {type(error).__name__}: {error}", file=_TASKS) from error


FORMAT = Format(
    name="lerobot",
    summary="LeRobot v2.1 folder (meta/info.json and a Parquet file an episode)",
    probe=probe,
    open=open_,
    priority=40,
)
