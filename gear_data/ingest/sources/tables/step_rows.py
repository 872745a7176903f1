"""Tables with a row a step: LeRobot's Parquet files, or any table with an episode column, end flags or step numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, EmptySourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding, FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.assemble import StepPart, UnreadableRows, assemble
from gear_data.ingest.pipeline.boundaries import EpisodeIdChecker, EpisodeNumbering, read_episode_ids
from gear_data.ingest.pipeline.columns import (
    END_FLAGS,
    EPISODE_COLUMNS,
    SCALAR_COLUMNS,
    choose_columns,
    resolve_structure_columns,
)
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.pipeline.step_order import check_step_order, step_numbers
from gear_data.ingest.source import Format, SourceOptions, Unit
from gear_data.ingest.sources.tables.null_columns import leave_out_null_columns
from gear_data.ingest.sources.tables.stream import TablePart, TableStream, open_tables, read_ahead, require_tables
from gear_data.ingest.sources.tables.to_numpy import (
    BadRowsError,
    IrregularRowsError,
    inner_shape,
    is_list,
    leaf_dtype,
    storage_array,
    to_numpy,
)
from gear_data.ingest.sources.tables.variable_length import path_rows, paths_left_out, to_variable, variable_dtype
from gear_data.schema import ColumnSpec
from gear_data.storage.block import END, EpisodeBlock, Position

#: Columns that say again what the order of rows says, and whether they begin with 0 in every episode.
ORDER_COLUMNS = {"frame_index": True, "index": False, "step_index": True, "step_id": False}
_HEAD_ROWS = 64
#: Before the names of columns that are looked at episode by episode and then dropped; no column's own name has it.
_CHECKED, _PATHS = "\0order ", "\0paths "
#: Marks the first step of every file, until an episode that crosses files is noted.
_EDGES = "files begin"


def probe(location: Location) -> str | None:
    tables = open_tables(location)
    if tables is None:
        return None
    if (episode := _episode_column(tables.schema)) is not None:
        verb = "names" if _is_text(tables.schema.field(episode).type) else "numbers"
        return f"a row is a step: '{episode}' {verb} the episodes"
    for field in tables.schema:
        if canonical_name(field.name) in END_FLAGS and not is_list(field.type):
            return f"a row is a step: '{field.name}' ends the episodes"
    return None


def _episode_column(schema: pa.Schema) -> str | None:
    """Numbers go before names: what is called by its name may be the kind of episode."""
    for fits in (pa.types.is_integer, _is_text):
        for name in EPISODE_COLUMNS:
            if name in schema.names and fits(schema.field(name).type):
                return name
    return None


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def open_(location: Location, options: SourceOptions) -> StepRowSource:
    return StepRowSource(location, require_tables(location), options)


class StepRowSource:
    """An `EpisodeSource` over tables with a row a step.

    An episode is a run of rows with one value in the episode column; or the rows up to an end flag; or rows whose step
    numbers rise. Rows of an episode must stand together. Step numbers are compared with the rows' order, not stored.
    """

    rows_are_steps = True

    def __init__(self, location: Location, tables: TableStream, options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self._tables = tables
        self._options = options = resolve_structure_columns(tables.schema.names, options)
        self._name = location.name
        self._units: tuple[tuple[Unit, Any], ...] | None = None
        self._episode = options.episode_column or _episode_column(tables.schema)
        if self._episode is not None:
            _require_ids(tables.schema, self._episode, location.name)
        self._orders = self._order_columns(tables.schema)
        names = leave_out_null_columns(tables.schema, location.name, options, self.findings)
        chosen = choose_columns([name for name in names if name not in {self._episode, *self._orders}], options)
        self._sources = chosen
        self._by_steps = False
        if self._episode is None and not END_FLAGS & set(chosen.values()):
            self._by_steps = options.step_column is not None
            if not self._by_steps:
                raise UnknownFormatError(
                    f"neither an episode column ({', '.join(EPISODE_COLUMNS)}) nor an end flag",
                    file=location.name,
                    hint="name it with --episode-column, --end-column or --step-column",
                )
        needed = [self._episode, *self._orders, *chosen]
        tables.select([name for name in dict.fromkeys(needed) if name is not None])
        head = tables.head(_HEAD_ROWS)
        if head is None:
            raise EmptySourceError("the source holds no episode", file=location.name)
        self.columns = tuple(self._infer(head, source, name) for source, name in chosen.items())

    def _order_columns(self, schema: pa.Schema) -> dict[str, bool]:
        """Columns that number steps, and whether they must begin with 0. Without an episode column those known by their
        names may be anything; they are columns like others then."""
        asked = self._options.step_column
        found = {name: zero for name, zero in ORDER_COLUMNS.items() if name in schema.names and self._episode}
        orders = {name: zero for name, zero in found.items() if pa.types.is_integer(schema.field(name).type)}
        if asked is not None:
            if not pa.types.is_integer(schema.field(asked).type):
                raise UnsupportedColumnError(
                    f"holds {schema.field(asked).type}, where steps are numbered by integers",
                    file=self._name,
                    column=asked,
                    hint="leave --step-column out",
                )
            orders[asked] = False
        return orders

    def _infer(self, head: pa.Table, source: str, name: str) -> ColumnSpec:
        array, known_as = storage_array(head.column(source)), None if source == name else source
        if (dtype := variable_dtype(array.type, name)) is not None:
            return ColumnSpec(name, dtype, source=known_as)
        shape = inner_shape(array)
        if name in SCALAR_COLUMNS and shape == (1,):
            shape = ()
        if 0 in shape:
            raise BadEpisodeError("has no elements", file=self._name, column=source, row=0)
        return ColumnSpec(name, leaf_dtype(array.type, file=self._name, column=source), shape, source=known_as)

    @property
    def num_rows(self) -> int | None:
        return self._tables.num_rows

    def units(self) -> Sequence[Unit]:
        return [unit for unit, _ in self._spans()]

    def _spans(self) -> tuple[tuple[Unit, Any], ...]:
        """The units, and the least id of each."""
        if self._units is None:
            if self._episode is None:
                spans = self._tables.spans(None)
                self._units = ((Unit(spans[0].position, sum(span.bytes for span in spans)), None),)
            else:
                spans = self._tables.spans(self._episode)
                self._units = tuple((Unit(span.position, span.bytes), span.low) for span in spans)
        return self._units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        spans = self._spans()
        ends = [*(unit.position for unit, _ in spans[1:]), END]
        lows = [*(low for _, low in spans), None]
        for i, end in enumerate(ends):
            if start < end and start < stop:
                ids = EpisodeIdChecker(self._episode, self.resume_state, lows[i], lows[i + 1])
                for block in assemble(self._parts(start, min(end, stop), ids), self.findings, has_final=False):
                    yield self._check(block)
                start = end
                self.resume_state.clear()  # ids of another unit's episodes are others

    def _parts(self, start: Position, stop: Position, known: EpisodeIdChecker) -> Iterator[StepPart]:
        boundaries = EpisodeNumbering()
        for part in read_ahead(self._tables.parts(start, stop)):
            keep = np.ones(len(part.table), np.bool_)
            faults: list[UnreadableRows] = []
            while True:
                try:
                    columns, variable = self._read(part, keep)
                    break
                except BadRowsError as bad:
                    faults.append(UnreadableRows(bad.rows, bad.column, bad.reason))
                    keep[bad.rows] = False
            if self._episode is not None:
                columns[_EDGES] = _file_edges(part)[keep]
            facts: dict[str, npt.NDArray[Any]] = {}
            if self._episode is not None:
                ids = read_episode_ids(part, self._episode)
                starts = known.starts(ids, part)
                facts[self._episode] = ids.values()
            elif self._by_steps:
                starts = boundaries.by_steps(step_numbers(storage_array(part.table.column(*self._orders))))
            else:
                starts = boundaries.by_ends(self._ends(columns, keep))
            episodes = boundaries.number(starts)
            steps = StepPart(
                file=part.position.file,
                name=part.file_rows[0].name,
                rows=part.rows(),
                episodes=episodes,
                keep=keep,
                columns=columns,
                facts=facts,
                finals={},
                variable=variable,
                faults=tuple(faults),
            )
            yield from _files_apart(steps, part)

    def _read(
        self, part: TablePart, keep: npt.NDArray[np.bool_]
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, pa.Array]]:
        """The steps to keep: columns of a fixed size, and those of variable length. Raises BadRowsError for rows
        where they cannot be read and bad episodes are skipped, else BadEpisodeError."""
        table = part.table if keep.all() else part.table.filter(pa.array(keep))
        columns: dict[str, npt.NDArray[Any]] = {}
        variable: dict[str, pa.Array] = {}
        for source, spec in zip(self._sources, self.columns, strict=True):
            array = storage_array(table.column(source))
            try:
                if spec.variable_length:
                    variable[spec.name] = to_variable(array, spec.dtype)
                    if (paths := path_rows(array)) is not None:
                        columns[_PATHS + source] = paths
                else:
                    values = to_numpy(array, spec.shape if spec.shape or not is_list(array.type) else (1,))
                    columns[spec.name] = values.reshape(len(values), *spec.shape)
            except IrregularRowsError as error:
                rows = np.flatnonzero(keep)[error.rows]
                if self._options.skip_bad:
                    raise BadRowsError(rows, source, error.reason) from None
                file, row = part.place(int(rows[0]))
                raise BadEpisodeError(
                    error.reason,
                    file=file,
                    column=source,
                    row=row,
                    hint=BAD_EPISODE_HINT,
                ) from None
        for source in self._orders:
            columns[_CHECKED + source] = step_numbers(storage_array(table.column(source)))
        return columns, variable

    def _ends(self, columns: Mapping[str, npt.NDArray[Any]], keep: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        ends = np.zeros(len(keep), np.bool_)
        for name in END_FLAGS & columns.keys():
            ends[keep] |= columns[name].astype(np.bool_)
        return ends

    def _note_crossing(self, block: EpisodeBlock) -> None:
        """Notes episodes that go on in another file, unless numbers of steps go on there too."""
        edges = block.columns[_EDGES].copy()
        edges[block.offsets[:-1]] = False
        for source in self._orders:
            numbers = block.columns[_CHECKED + source]
            edges[1:] &= numbers[1:] != numbers[:-1] + 1
        if edges.any():
            episode = int(np.searchsorted(block.offsets, np.argmax(edges), side="right")) - 1
            message = (
                "an episode of one file goes on in the next; kept as one. If every file numbers its episodes anew, "
                "give them ids of their own, or convert the files one by one"
            )
            file, row = block.sources[episode], int(block.rows[episode])
            self.findings.add(Finding("episode-crosses-files", message, int(edges.sum()), file, row, self._episode))

    def _check(self, block: EpisodeBlock) -> EpisodeBlock:
        """FindingLog are made block by block: what was read ahead of a block is read again by a resumed run."""
        columns = {
            name: block.columns[name] for name in block.columns if not name.startswith((_CHECKED, _PATHS, _EDGES))
        }
        for source, from_zero in self._orders.items():
            numbers = block.columns[_CHECKED + source]
            check_step_order(block, numbers, source, self.findings, from_zero=from_zero, rows_are_steps=True)
        if _EDGES in block.columns:
            self._note_crossing(block)
        for name in block.columns.keys() - columns.keys():
            if name.startswith(_PATHS) and (paths := block.columns[name]).any():
                step = int(np.argmax(paths))
                episode = int(np.searchsorted(block.offsets, step, side="right")) - 1
                row = int(block.rows[episode] + step - block.offsets[episode])
                source = name.removeprefix(_PATHS)
                self.findings.add(paths_left_out(int(paths.sum()), block.sources[episode], row, source))
        return replace(block, columns=columns)


def _file_edges(part: TablePart) -> npt.NDArray[np.bool_]:
    """bool [n]: whether each row of a part is the first of its file."""
    edges = np.zeros(len(part.table), np.bool_)
    first = 0
    for rows_of_file in part.file_rows:
        edges[first] = rows_of_file.position.row == 0
        first += rows_of_file.count
    return edges


def _files_apart(step_part: StepPart, part: TablePart) -> Iterator[StepPart]:
    """The steps of each file of a part."""
    first = 0
    for i, rows_of_file in enumerate(part.file_rows):
        cut = step_part.cut(first, first + rows_of_file.count)
        more = i + 1 < len(part.file_rows)
        yield replace(cut, file=rows_of_file.position.file, name=rows_of_file.name, continues=more)
        first += rows_of_file.count


def _require_ids(schema: pa.Schema, column: str, file: str) -> None:
    type_ = schema.field(column).type
    if not (pa.types.is_integer(type_) or _is_text(type_)):
        raise UnsupportedColumnError(
            f"holds {type_}, where episodes are told apart by integers or names",
            file=file,
            column=column,
            hint="choose another column with --episode-column",
        )


FORMAT = Format(
    name="step-rows",
    probe=probe,
    open=open_,
    priority=20,
    uses=frozenset({"episode_column", "step_column", "end_column"}),
    suffixes=(".parquet",),
)
