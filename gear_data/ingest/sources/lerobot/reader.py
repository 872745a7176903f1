"""LeRobot v2.0, v2.1 and v3.0: Parquet files with one row per frame.

v2 has one file per episode; v3 has files of many episodes, closed by size. All Parquet files under `data/` are read;
the template `data_path` in the metadata is ignored. The `episode_index` of the rows is used, not the metadata. A
finding reports each difference between rows and metadata. Features of type video are cameras: see `episode_videos`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.mapped_source import MappedSource, without
from gear_data.ingest.source import Format, SourceOptions, SourceVideos
from gear_data.ingest.sources.lerobot.cameras import check_names, choose_cameras
from gear_data.ingest.sources.lerobot.episode_videos import find_videos
from gear_data.ingest.sources.lerobot.export_notes import ExportNotes, FinalObservations, read_notes
from gear_data.ingest.sources.lerobot.metadata import (
    EVENTS,
    PERSISTENT,
    ROWS_ONLY,
    SUBTASK,
    TASK,
    LeRobotInfo,
    data_file_key,
    read_episode_list,
    read_info,
    read_subtasks,
    read_tasks,
)
from gear_data.ingest.sources.lerobot.metadata_checks import (
    check_block,
    check_features,
    check_listing,
    check_timestamps,
    persistent_rows,
    subtask_texts,
    task_texts,
    with_element_names,
)
from gear_data.ingest.sources.tables.cast_tables import cast_tables
from gear_data.ingest.sources.tables.fetched_files import with_fetched
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.parquet import PARQUET
from gear_data.ingest.sources.tables.step_rows import StepRowSource
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock, shaped

_EPISODE = "episode_index"
_TIME = "timestamp"
#: Columns that the checks and the episodes' tasks need, even if the user does not keep them.
_FOR_CHECKS = (TASK, SUBTASK, _TIME)
_MAJORS = (2, 3)
#: Facts about all episodes.
_TOTALS = ("total_episodes", "total_frames")
#: Metadata that is read: all but the statistics.
_METADATA = re.compile(r"meta/(?!.*stats).*\.(json|jsonl|parquet)")


def probe(location: Location) -> str | None:
    """Returns the reason if `meta/info.json` is LeRobot's; otherwise None."""
    if not _data_files(location):
        return None
    info = read_info(location)
    return None if info is None else f"a LeRobot dataset {info.version}: it has {info.name}"


def open_(location: Location, options: SourceOptions) -> LeRobotSource:
    """Opens a LeRobot dataset. Raises UnknownFormatError for an unsupported version."""
    files = _data_files(location)
    info = read_info(location) if files else None
    if info is None:
        raise UnknownFormatError(
            "has no meta/info.json of LeRobot with Parquet files under data/", hint="leave --format out"
        )
    if info.major not in _MAJORS:
        hint = ROWS_ONLY
        if info.major == 1:
            hint = f"convert it to v2 or v3 with LeRobot's own converters (lerobot/datasets); or {hint}"
        raise UnknownFormatError(f"LeRobot {info.version} is not supported; v2.0, v2.1 and v3.0 are", hint=hint)
    if (named := options.episodes.one_episode_column()) not in (None, _EPISODE):
        raise InvalidArgumentError(
            f"the episodes of a LeRobot dataset are numbered by '{_EPISODE}'",
            column=named,
            hint=f"leave --episode-column out, or {ROWS_ONLY}",
        )
    location = with_fetched(location, lambda name: _METADATA.fullmatch(name) is not None)
    if (wanted := options.episodes.only_episodes) is not None:
        files = _files_of(wanted, files, location, info)
    files = with_fetched(replace(location, files=files), lambda name: name == files[0].name).files
    return LeRobotSource(location, files, info, options)


def _data_files(location: Location) -> tuple[SourceFile, ...]:
    return tuple(file for file in location.with_suffix(".parquet") if file.name.startswith("data/"))


def _files_of(
    episodes: tuple[int, ...], files: tuple[SourceFile, ...], location: Location, info: LeRobotInfo
) -> tuple[SourceFile, ...]:
    """Returns the Parquet files that may have rows of some episodes.

    Raises:
        InvalidArgumentError: an episode is not listed.
        CorruptSourceError: the files are missing.
    """
    listed, keys = read_episode_list(location, info.major), [data_file_key(file.name, info.major) for file in files]
    known: dict[int, tuple[int, ...] | None] = {}
    if listed is not None:
        known = dict(zip(listed.ids.tolist(), listed.files or [None] * len(listed.ids), strict=True))
    elif info.major == 2:
        known = {key[0]: key for key in keys if key is not None}
    absent = [number for number in episodes if number not in known]
    if absent:
        raise InvalidArgumentError(
            f"the dataset lists no episode {absent[0]}; its last one is {max(known, default=None)}",
            hint="give other numbers in only_episodes (--only-episodes), or leave it out",
        )
    wanted = {known[number] for number in episodes}
    if None in wanted:
        return files
    found = tuple(file for file, key in zip(files, keys, strict=True) if key is None or key in wanted)
    if not found:
        raise CorruptSourceError(
            f"the Parquet files of the episodes {episodes[:10]} are missing", hint="restore the folder data/"
        )
    return found


class LeRobotSource(MappedSource):
    """An `EpisodeSource` over a LeRobot dataset.

    `StepRowSource` reads the steps. This class adds the episodes' facts, tasks and rows of language, and checks the
    rows against the metadata.
    """

    def __init__(
        self, location: Location, files: tuple[SourceFile, ...], info: LeRobotInfo, options: SourceOptions
    ) -> None:
        tables = cast_tables(FileTables(files, PARQUET, as_json={PERSISTENT, EVENTS}), location)
        names = tables.schema.names
        if _EPISODE not in names:
            raise CorruptSourceError(
                "the column is missing; every frame needs it",
                file=files[0].name,
                column=_EPISODE,
                hint=f"if another column numbers the episodes, {ROWS_ONLY} --episode-column NAME",
            )
        cameras, options = choose_cameras(info, names, options)
        requested = options.columns
        if requested is not None:
            check_columns = tuple(name for name in _FOR_CHECKS if name in names)
            options = replace(options, columns=(*requested, *check_columns))
        rows = StepRowSource(location, tables, options, are_listed=True)
        by_source = {spec.source_name: spec for spec in rows.columns}
        self._time = by_source.get(_TIME)
        self._task, self._subtask = (_number_column(by_source, name, files[0].name) for name in (TASK, SUBTASK))
        persistent = by_source.get(PERSISTENT)
        self._persistent = persistent.name if persistent is not None and persistent.dtype == "string" else None
        self._info = info
        self._tasks = read_tasks(location, info.major)
        self._subtasks = read_subtasks(location)
        self._listed = read_episode_list(location, info.major)
        kept = _kept_columns(rows.columns, requested, read_notes(location))
        kept = tuple(spec for spec in kept if spec.name != self._persistent)
        columns = with_element_names(info, kept, rows.findings)
        with_final = tuple(spec for spec in columns if spec.has_final)
        self._finals = FinalObservations(location, with_final) if with_final else None
        check_names(cameras, columns)
        wanted = self._wanted = options.episodes.only_episodes
        found = self._found = find_videos(location, info, self._listed, cameras, wanted)
        first = 0 if self._listed is None or not len(self._listed.ids) else int(self._listed.ids[0])
        first = first if wanted is None else wanted[0]
        found.check_present(columns, first)
        videos = SourceVideos(tuple(camera.spec for camera in cameras), found.files, found.declared)
        super().__init__(rows, columns, videos)
        check_features(info, names, rows.columns, self.findings)
        check_listing(info, self._listed, [file.name for file in _data_files(location)], self.findings)

    @property
    def metadata(self) -> Mapping[str, Any]:
        texts = {str(number): text for number, text in self._subtasks.items()}
        facts = {name: value for name, value in self._info.facts.items() if self._wanted is None or name not in _TOTALS}
        return {**facts, "subtasks": texts} if texts else facts

    @property
    def num_rows(self) -> int | None:
        if self._wanted is not None:
            return super().num_rows
        return self._info.total_frames or super().num_rows

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        if self._wanted is None:
            yield self._completed(piece)
            return
        for run in without(piece, ~np.isin(_episode_numbers(piece), self._wanted)):
            yield self._completed(run)

    def _completed(self, piece: EpisodeBlock) -> EpisodeBlock:
        """Adds facts and tasks to a block, and drops columns that only checks need."""
        ids = _episode_numbers(piece)
        indices = np.full(len(ids), -1) if self._listed is None else self._listed.find(ids)
        if self._listed is not None:
            check_block(piece, indices, self._listed, self.findings)
        if self._time is not None and not self._time.variable_length and self._info.fps is not None:
            check_timestamps(piece, piece.columns[self._time.name], self._info.fps, self.findings)
        tasks: list[str | None] = [None] * len(ids)
        if self._task is not None:
            tasks = task_texts(piece, piece.columns[self._task.name], self._tasks, self.findings)
        facts: dict[str, list[Any]] = {}
        if (listed := self._listed) is not None:
            places = indices.tolist()  # -1 for an episode that is not listed
            named = [next(iter(listed.tasks[i]), None) if i >= 0 else None for i in places]
            tasks = [task or other for task, other in zip(tasks, named, strict=True)]
            facts = {name: [each[i] if i >= 0 else None for i in places] for name, each in listed.facts.items()}
        metadata = {**facts, **piece.metadata, "task": [task or None for task in tasks]}
        if self._subtask is not None and self._subtasks:
            numbers = piece.columns[self._subtask.name]
            metadata["subtasks"] = subtask_texts(piece, numbers, self._subtasks, self.findings)
        if self._persistent is not None:
            metadata[self._persistent] = persistent_rows(piece, self._persistent, self.findings)
        columns = {spec.name: shaped(piece.columns[spec.name], spec) for spec in self.columns}
        times = self._found.times(ids)
        piece = replace(piece, columns=columns, metadata=metadata, video_times=times)
        return piece if self._finals is None else self._finals.add(piece, ids)


def _number_column(columns: Mapping[str, ColumnSpec], name: str, file: str) -> ColumnSpec | None:
    """Returns the column that numbers tasks or subtasks; None if there is none.

    Raises:
        CorruptSourceError: the column does not hold integers.
    """
    spec = columns.get(name)
    if spec is not None and spec.numpy_dtype.kind not in "iu":
        raise CorruptSourceError(
            f"is {spec.dtype}, where integers that number the {name.removesuffix('_index')}s are expected",
            file=file,
            column=name,
            hint=ROWS_ONLY,
        )
    return spec


def _episode_numbers(block: EpisodeBlock) -> npt.NDArray[np.int64]:
    """Returns int64 [episodes]: the numbers of a block's episodes.

    Raises:
        CorruptSourceError: a value is not an integer of 64 bits.
    """
    # Numbers that are no integers may be missing: they do not identify episodes.
    numbers = block.metadata.get(_EPISODE, ["a value of another type"] * len(block))
    for value, file, row in zip(numbers, block.sources, block.rows, strict=True):
        if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
            raise CorruptSourceError(
                f"the number of an episode must be an integer, not {value!r}",
                file=file,
                column=_EPISODE,
                row=int(row),
                hint=f"number the episodes 0, 1, 2, ...; or {ROWS_ONLY}",
            )
    return np.asarray(numbers, np.int64)


def _kept_columns(
    columns: Sequence[ColumnSpec], requested: Sequence[str] | None, notes: ExportNotes
) -> tuple[ColumnSpec, ...]:
    """Returns the columns of the dataset, without columns added by an export.

    Args:
        columns: the columns that are read.
        requested: source or canonical names that the user keeps. None keeps all columns; otherwise columns that only
            the checks need are dropped.
        notes: the notes of the export.
    """
    kept = []
    for spec in columns:
        source = spec.source_name
        only_for_checks = source in _FOR_CHECKS and requested is not None and not {*requested} & {spec.name, source}
        if source not in notes.added and not only_for_checks:
            kept.append(spec)
    return notes.restore(tuple(kept))


FORMAT = Format(
    "lerobot",
    probe,
    open_,
    uses=frozenset({"episode_column", "step_column", "end_column", "only_episodes", "dtype", "fill_null"}),
    suffixes=(".parquet",),
    beside=r"(meta|meta_data)/.*",
    in_time_order=True,
    knows_last_rows=True,
)
