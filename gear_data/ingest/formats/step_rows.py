"""Tables with a row a step: LeRobot's Parquet files, or any table with an episode column or an end flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, EmptySourceError, UnknownFormatError
from gear_data.ingest.arrow_tables import TablePart, TableStream, open_tables, read_ahead, require_tables
from gear_data.ingest.arrow_values import Irregular, inner_shape, is_list, leaf_dtype, storage_array, to_numpy
from gear_data.ingest.assemble import StepPart, assemble
from gear_data.ingest.columns import END_FLAGS, SCALARS, choose_columns
from gear_data.ingest.findings import Findings
from gear_data.ingest.id_ranges import IdRanges
from gear_data.ingest.location import Location
from gear_data.ingest.names import canonical_name
from gear_data.ingest.source import Format, SourceOptions, Unit
from gear_data.ingest.variable_values import note_paths, to_variable, variable_dtype
from gear_data.schema import ColumnSpec
from gear_data.storage.block import EpisodeBlock, Position

#: Names of the column that numbers episodes.
EPISODE_COLUMNS = ("episode_index", "episode_id", "episode", "traj_id", "trajectory_id")
#: Columns that say again what the order of rows says.
ORDER_COLUMNS = ("frame_index", "index", "step_index", "step_id")
_HEAD_ROWS = 64


def probe(location: Location) -> str | None:
    tables = open_tables(location)
    if tables is None:
        return None
    if (episode := _episode_column(tables.schema)) is not None:
        return f"a row is a step: '{episode}' numbers the episodes"
    for field in tables.schema:
        if canonical_name(field.name) in END_FLAGS and not is_list(field.type):
            return f"a row is a step: '{field.name}' ends the episodes"
    return None


def _episode_column(schema: pa.Schema) -> str | None:
    integers = {field.name for field in schema if pa.types.is_integer(field.type)}
    return next((name for name in EPISODE_COLUMNS if name in integers), None)


def open_(location: Location, options: SourceOptions) -> StepRows:
    return StepRows(location, require_tables(location), options)


class StepRows:
    """An `EpisodeSource` over tables with a row a step.

    An episode is a run of rows with one value in the episode column, or the rows up to an end flag. Rows of an
    episode must stand together. `tasks` turns the values of `task_index` into texts for the episode table.
    """

    rows_are_steps = True

    def __init__(
        self,
        location: Location,
        tables: TableStream,
        options: SourceOptions,
        *,
        tasks: Mapping[int, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.findings = Findings()
        self.notes: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = metadata or {}
        self.num_rows = tables.num_rows
        self._tables = tables
        self._options = options
        self._name = location.name
        self._tasks = tasks
        names = tables.schema.names
        self._episode = _episode_column(tables.schema)
        structure = {self._episode, *ORDER_COLUMNS} if self._episode else set()
        chosen = choose_columns([name for name in names if name not in structure], options)
        self._sources = chosen
        if self._episode is None and not END_FLAGS & set(chosen.values()):
            raise UnknownFormatError(
                f"neither an episode column ({', '.join(EPISODE_COLUMNS)}) nor an end flag", file=location.name
            )
        needed = [self._episode, *(["task_index"] if tasks is not None and "task_index" in names else []), *chosen]
        tables.select([name for name in dict.fromkeys(needed) if name is not None])
        head = tables.head(_HEAD_ROWS)
        if head is None:
            raise EmptySourceError("the source holds no episode", file=location.name)
        self.columns = tuple(self._infer(head, source, name) for source, name in chosen.items())

    def _infer(self, head: pa.Table, source: str, name: str) -> ColumnSpec:
        array, known_as = storage_array(head.column(source)), None if source == name else source
        if (dtype := variable_dtype(array.type, name)) is not None:
            return ColumnSpec(name, dtype, source=known_as)
        shape = inner_shape(array)
        if name in SCALARS and shape == (1,):
            shape = ()
        if 0 in shape:
            raise BadEpisodeError("has no elements", file=self._name, column=source, row=0)
        return ColumnSpec(name, leaf_dtype(array.type, file=self._name, column=source), shape, source=known_as)

    def units(self) -> Sequence[Unit]:
        return self._tables.units()

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        yield from assemble(self._parts(start, stop), self.findings, has_final=False)

    def _parts(self, start: Position, stop: Position) -> Iterator[StepPart]:
        boundaries = _Boundaries(self._episode, IdRanges(self.notes.get("episode_ids")))
        for part in read_ahead(self._tables.parts(start, stop)):
            keep = np.ones(len(part.table), np.bool_)
            while True:
                try:
                    columns, variable = self._read(part, keep)
                    break
                except Irregular as bad:
                    keep[np.flatnonzero(keep)[bad.rows]] = False
            for source in self._sources:
                column = storage_array(part.table.column(source))
                note_paths(column, self.findings, part.name, part.position.row, source)
            rows = np.arange(len(keep), dtype=np.int64) + part.position.row
            ids = self._ids(part)
            episodes = boundaries.number(ids, self._ends(part, columns, keep), part)
            self.notes["episode_ids"] = boundaries.ended_ids()
            facts: dict[str, npt.NDArray[Any]] = {}
            if ids is not None and self._episode is not None:
                facts[self._episode] = ids
            if self._tasks is not None and "task_index" in part.table.column_names:
                facts["task"] = self._task_names(part)
            yield StepPart(part.position.file, part.name, rows, episodes, keep, columns, facts, {}, variable)

    def _read(
        self, part: TablePart, keep: npt.NDArray[np.bool_]
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, pa.Array]]:
        """The steps to keep: columns of a fixed size, and those of variable length."""
        table = part.table if keep.all() else part.table.filter(pa.array(keep))
        columns, variable = {}, {}
        for source, spec in zip(self._sources, self.columns, strict=True):
            array = storage_array(table.column(source))
            try:
                if spec.variable_length:
                    variable[spec.name] = to_variable(array, spec.dtype)
                else:
                    values = to_numpy(array, spec.shape if spec.shape or not is_list(array.type) else (1,))
                    columns[spec.name] = values.reshape(len(values), *spec.shape)
            except Irregular as error:
                if self._options.skip_bad:
                    raise
                raise BadEpisodeError(
                    error.reason,
                    file=part.name,
                    column=source,
                    row=int(np.flatnonzero(keep)[error.rows[0]]) + part.position.row,
                    hint="mend the source, or leave such episodes out with --on-bad-episode skip",
                ) from None
        return columns, variable

    def _ids(self, part: TablePart) -> npt.NDArray[np.int64] | None:
        if self._episode is None:
            return None
        try:
            return to_numpy(storage_array(part.table.column(self._episode)), ()).astype(np.int64)
        except Irregular as error:
            raise BadEpisodeError(
                error.reason,
                file=part.name,
                column=self._episode,
                row=int(error.rows[0]) + part.position.row,
                hint="every step must say which episode it belongs to",
            ) from None

    def _ends(
        self, part: TablePart, columns: Mapping[str, npt.NDArray[Any]], keep: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        ends = np.zeros(len(keep), np.bool_)
        for name in END_FLAGS & columns.keys():
            ends[keep] |= columns[name].astype(np.bool_)
        return ends

    def _task_names(self, part: TablePart) -> npt.NDArray[Any]:
        tasks = self._tasks or {}
        return np.array([tasks.get(i) for i in part.table.column("task_index").to_pylist()], dtype=object)


class _Boundaries:
    """Numbers the episodes of a stream of steps: by their ids where there are any, else by end flags."""

    def __init__(self, column: str | None, ended: IdRanges) -> None:
        self._column = column
        self._number = 0
        self._last_id: int | None = None
        # Ids of the episodes before the present one, also of those that an earlier run converted.
        self._ended_ids = ended
        self._ended = False

    def ended_ids(self) -> list[list[int]]:
        return self._ended_ids.to_json()

    def number(
        self, ids: npt.NDArray[np.int64] | None, ends: npt.NDArray[np.bool_], part: TablePart
    ) -> npt.NDArray[np.int64]:
        """int64 [n]: the running episode number of each row."""
        if ids is None:
            starts = np.concatenate([[self._ended], ends[:-1]])
            self._ended = bool(ends[-1])
        else:
            first = ids[0] if self._last_id is None else self._last_id
            starts = np.diff(ids, prepend=first) != 0
            self._refuse_scattered(ids, starts, part)
            self._last_id = int(ids[-1])
        numbers = self._number + np.cumsum(starts)
        self._number = int(numbers[-1])
        return numbers.astype(np.int64)

    def _refuse_scattered(self, ids: npt.NDArray[np.int64], starts: npt.NDArray[np.bool_], part: TablePart) -> None:
        if self._last_id is None:
            starts = starts.copy()
            starts[0] = True
        for i in np.flatnonzero(starts).tolist():
            value = int(ids[i])
            before = int(ids[i - 1]) if i else self._last_id
            if before is not None:
                self._ended_ids.add(before)
            if value in self._ended_ids:
                raise BadEpisodeError(
                    f"episode {value} goes on here after another one began",
                    file=part.name,
                    column=self._column,
                    row=i + part.position.row,
                    hint="sort the rows by episode and step first",
                )


FORMAT = Format(
    name="step-rows",
    summary="Parquet or HuggingFace dataset, a row a step, with an episode column or end flags",
    probe=probe,
    open=open_,
    priority=20,
)
