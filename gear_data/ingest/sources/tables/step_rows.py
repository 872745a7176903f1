"""Tables with one row per step, with an episode column, end flags or step numbers.

LeRobot's Parquet files are such tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import (
    BadEpisodeError,
    EmptySourceError,
    InvalidArgumentError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.ingest.ideas.next_observations import JumpFinder, alike_pairs, next_pairs
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.assemble import StepPart, UnreadableRows, assemble
from gear_data.ingest.pipeline.boundaries import (
    EpisodeIdChecker,
    EpisodeNumbering,
    check_step_order,
    read_episode_ids,
    step_numbers,
)
from gear_data.ingest.pipeline.columns import (
    END_FLAGS,
    EPISODE_COLUMNS,
    FIRST_FLAGS,
    ORDER_COLUMNS,
    choose_columns,
    column_spec,
    leave_out,
    resolve_structure_columns,
)
from gear_data.ingest.pipeline.id_ranges import OTHER_ENDS, SORT
from gear_data.ingest.pipeline.names import DONES, name_map
from gear_data.ingest.source import Format, SourceOptions, Unit
from gear_data.ingest.sources.tables.open import BESIDE_TABLES, TABLE_SUFFIXES, open_tables, require_tables
from gear_data.ingest.sources.tables.recognise import (
    episode_column,
    is_float,
    is_text,
    leave_out_columns,
    why_rows_are_steps,
)
from gear_data.ingest.sources.tables.stream import TablePart, TableStream, read_ahead
from gear_data.ingest.sources.tables.to_numpy import (
    BadRowsError,
    IrregularRowsError,
    column_values,
    inner_shape,
    leaf_dtype,
    leaf_type,
    path_rows,
    paths_left_out,
    storage_array,
    variable_dtype,
)
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import END, EpisodeBlock, Position, Values

_HEAD_ROWS = 64
#: Prefixes of check columns, which pass through assembling and are dropped after the checks. Column names cannot
#: contain "\0".
_ORDER_CHECK, _PATH_CHECK = "\0order ", "\0paths "
#: Check column that is true at the first step of every file.
_FILE_BEGINS = "\0files begin"


def probe(location: Location) -> str | None:
    """Returns the reason if a row of the tables is a step; otherwise None."""
    tables = open_tables(location)
    return None if tables is None else why_rows_are_steps(location, tables)


def open_(location: Location, options: SourceOptions) -> StepRowSource:
    """Opens tables with one row per step. Raises UnknownFormatError without tables."""
    return StepRowSource(location, require_tables(location), options)


class StepRowSource:
    """An `EpisodeSource` over tables with one row per step.

    An episode is a run of rows with the same value in the episode column, up to an end flag if the user named it;
    without such a column, the rows up to an end flag, or from a flag of the first step; without flags, rows with rising
    step numbers. If no flag marks truncation, an episode also ends where its next observation is not the observation of
    the next row. The rows of an episode must be consecutive. Step numbers are compared with the order of the rows, and
    are not stored.

    `are_listed` says whether metadata lists the episodes by their ids, so that nothing else may end them.
    """

    rows_are_steps = True

    def __init__(
        self, location: Location, tables: TableStream, options: SourceOptions, *, are_listed: bool = False
    ) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self._tables = tables
        self._options = options = resolve_structure_columns(tables.schema.names, options)
        self._units: tuple[tuple[Unit, Any], ...] | None = None
        self._by_file = options.episodes.file_is_episode
        self._has_end_column = options.episodes.end_column is not None and not are_listed
        more = "; if every file numbers its episodes from 0, give the files as several sources"
        self._id_hint = SORT if are_listed else f"{SORT}{OTHER_ENDS}{more}"
        self._ids = options.episodes.episode_columns
        if not self._ids and not self._by_file:
            self._ids = tuple(filter(None, [episode_column(tables.schema, location.rename)]))
        for name in self._ids:
            _require_ids(tables.schema, name)
        self._orders = self._order_columns(tables.schema)
        names = leave_out_columns(tables.schema, location.name, options, self.findings)
        #: Source name -> canonical name.
        structure = {*self._orders, *self._ids}
        self._sources = choose_columns([n for n in names if n not in structure], options, structure=structure)
        self._ends_by_steps = self._ends_only_by_steps(names)
        tables.select([*dict.fromkeys([*self._ids, *self._orders, *self._sources])])
        head = tables.head(_HEAD_ROWS)
        if head is None:
            raise EmptySourceError("the source holds no episode")
        self.columns = tuple(self._infer_column(head, source, name) for source, name in self._sources.items())
        has_truncation = bool({DONES, "truncated"} & set(self._sources.values()))
        fixed = {spec.name: spec.shape for spec in self.columns if not spec.variable_length}
        self._jumps = {} if has_truncation else alike_pairs(fixed)
        self._floats = self._stored_floats(tables.uncast)
        if not (self._ids or self._by_file or self._ends_by_steps or self._jumps or self._has_flags):
            raise _no_ends()

    def _ends_only_by_steps(self, names: Sequence[str]) -> bool:
        """Returns whether only step numbers say where episodes end.

        Args:
            names: the source's names of all columns.

        Raises:
            UnknownFormatError: nothing says where episodes end.
            InvalidArgumentError: only columns say it that the user did not choose.
        """
        chosen = set(self._sources.values())
        if self._ids or self._by_file or {DONES, "truncated"} & chosen:
            return False
        if self._options.episodes.step_column is not None:
            return not END_FLAGS & chosen
        pairs = next_pairs(set(name_map(names, self._options.rename).values()))
        if pairs and not next_pairs(chosen):
            raise InvalidArgumentError(
                "only next observations say where episodes end, and columns does not name the observations",
                hint=f"add {next(iter(pairs.values()))} to --columns (columns=[...])",
            )
        if pairs or self._has_flags:
            return False
        raise _no_ends()

    @property
    def _has_flags(self) -> bool:
        """Whether flags of the first or last step are read."""
        return not (END_FLAGS | FIRST_FLAGS).isdisjoint(self._sources.values())

    def _order_columns(self, schema: pa.Schema) -> dict[str, bool]:
        """Returns the columns that number steps.

        The result is source name -> whether the numbers of an episode must begin with 0.

        Without an episode column, columns with the names in `ORDER_COLUMNS` may mean anything. They are then ordinary
        columns, and only the step column counts.
        """
        step_column = self._options.episodes.step_column
        usual = {name: (self._options.rename or {}).get(name, name) for name in schema.names}
        # A user who names a column "index" may want a column of that name.
        known = {
            name: ORDER_COLUMNS[new]
            for name, new in (usual.items() if self._ids or self._by_file else ())
            if new in ORDER_COLUMNS and (name == new or new != "index")
        }
        orders = {name: zero for name, zero in known.items() if pa.types.is_integer(schema.field(name).type)}
        if step_column is not None:
            if not pa.types.is_integer(schema.field(step_column).type):
                hint = "leave --step-column out"
                if is_float(schema.field(step_column).type):
                    hint += f"; or, for whole numbers, add --dtype {shlex.quote(step_column)}=int64"
                raise UnsupportedColumnError(
                    f"holds {schema.field(step_column).type}, where integers that number the steps are expected",
                    column=step_column,
                    hint=hint,
                )
            orders[step_column] = False
        return orders

    def _infer_column(self, head: pa.Table, source: str, name: str) -> ColumnSpec:
        """Infers a step column from its type and the first rows."""
        array = storage_array(head.column(source))
        if (dtype := variable_dtype(array.type, name)) is not None:
            return column_spec(name, dtype, source=source)
        shape = inner_shape(array)
        if 0 in shape:
            raise BadEpisodeError("has no elements", column=source, row=0, hint=leave_out(source))
        return column_spec(name, leaf_dtype(array.type, source), shape, source=source)

    def _stored_floats(self, schema: pa.Schema) -> dict[str, npt.DTypeLike]:
        """Returns canonical name -> dtype in the source, of the columns of floats."""
        found: dict[str, npt.DTypeLike] = {}
        for source, spec in zip(self._sources, self.columns, strict=True):
            leaf = leaf_type(schema.field(source).type)
            if pa.types.is_floating(leaf) and spec.numpy_dtype.kind == "f":
                found[spec.name] = leaf.to_pandas_dtype()
        return found

    @property
    def num_rows(self) -> int | None:
        return self._tables.num_rows

    def units(self) -> Sequence[Unit]:
        return [unit for unit, _ in self._spans()]

    def _spans(self) -> tuple[tuple[Unit, Any], ...]:
        """Returns the units, and the lower bound of the ids in each."""
        if self._units is None:
            if self._ids and not self._has_end_column:
                # Rows with the same ids have the same first id.
                spans = self._tables.spans(self._ids[0])
                self._units = tuple((Unit(span.position, span.bytes), span.low) for span in spans)
            else:
                units: list[Unit] = []
                for span in self._tables.spans(None):
                    if not units or (self._by_file and span.position.row == 0):
                        units.append(Unit(span.position, 0))
                    units[-1] = replace(units[-1], bytes=units[-1].bytes + span.bytes)
                self._units = tuple((unit, None) for unit in units)
        return self._units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        spans = self._spans()
        ends = [*(unit.position for unit, _ in spans[1:]), END]
        lows = [*(low for _, low in spans), None]
        for i, end in enumerate(ends):
            if start < end and start < stop:
                column = next(iter(self._ids), None)
                ids = EpisodeIdChecker(
                    column, self.resume_state, lows[i], lows[i + 1], may_return=self._has_end_column, hint=self._id_hint
                )
                for block in assemble(self._parts(start, min(end, stop), ids), self.findings):
                    yield self._check(block)
                start = end
                self.resume_state.clear()  # the next unit has other ids

    def _parts(self, start: Position, stop: Position, id_checker: EpisodeIdChecker) -> Iterator[StepPart]:
        """Yields the steps from `start` to `stop`, with numbered episodes.

        The steps include the check columns.
        """
        numbering, jumps = EpisodeNumbering(), JumpFinder(self._jumps, self._floats)
        for part in read_ahead(self._tables.parts(start, stop)):
            columns, keep, unreadable = self._read_part(part)
            facts: dict[str, npt.NDArray[Any]] = {}
            if self._ids:
                if not self._tables.is_one_table:
                    columns[_FILE_BEGINS] = _file_begins(part)[keep]
                ids = {name: read_episode_ids(part, name) for name in self._ids}
                starts = id_checker.starts([*ids.values()], part)
                if self._has_end_column:
                    starts |= numbering.by_ends(self._flagged(END_FLAGS, part, columns, keep))
                rename = self._options.rename or {}
                facts = {rename.get(name, name): each.values() for name, each in ids.items()}
            elif self._by_file:
                starts = _file_begins(part)
            elif self._ends_by_steps:
                starts = numbering.by_steps(step_numbers(storage_array(part.table.column(*self._orders))))
            else:
                starts = numbering.by_ends(self._flagged(END_FLAGS, part, columns, keep))
                starts |= jumps.starts(columns, keep) | self._flagged(FIRST_FLAGS, part, columns, keep)
            episodes = numbering.number(starts)
            steps = StepPart(
                file=part.position.file,
                name=part.file_rows[0].name,
                rows=part.rows(),
                episodes=episodes,
                keep=keep,
                columns=columns,
                facts=facts,
                faults=tuple(unreadable),
            )
            yield from _split_by_file(steps, part)

    def _read_part(self, part: TablePart) -> tuple[dict[str, Values], npt.NDArray[np.bool_], list[UnreadableRows]]:
        """Reads the readable rows of a part.

        Returns:
            The columns, bool [n] of the rows that were read, and the unreadable rows.
        """
        keep = np.ones(len(part.table), np.bool_)
        unreadable: list[UnreadableRows] = []
        while True:
            try:
                return self._read(part, keep), keep, unreadable
            except BadRowsError as bad:
                if not self._options.skip_bad:
                    raise bad.about(part.table, *part.place(int(bad.rows[0]))) from None
                unreadable.append(UnreadableRows(bad.rows, bad.column, bad.reason))
                keep[bad.rows] = False

    def _read(self, part: TablePart, keep: npt.NDArray[np.bool_]) -> dict[str, Values]:
        """Reads the columns of the rows in `keep`.

        Raises:
            BadRowsError: rows of the part are unreadable.
        """
        table = part.table if keep.all() else part.table.filter(pa.array(keep))
        columns: dict[str, Values] = {}
        for source, spec in zip(self._sources, self.columns, strict=True):
            array = storage_array(table.column(source))
            try:
                columns[spec.name] = column_values(array, spec)
            except IrregularRowsError as error:
                raise BadRowsError(np.flatnonzero(keep)[error.rows], source, error.reason) from None
            if (paths := path_rows(array)) is not None:
                columns[_PATH_CHECK + source] = paths
        for source in self._orders:
            columns[_ORDER_CHECK + source] = step_numbers(storage_array(table.column(source)))
        return columns

    def _flagged(
        self, names: Set[str], part: TablePart, columns: Mapping[str, Values], keep: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Returns bool [n]: the rows of a part at which one of some flags is set.

        The flags of rows that are not kept count, too: else the episode after a bad episode would be a part of it.

        Args:
            names: the names of the flags.
            part: the rows.
            columns: name -> values of the rows in `keep`.
            keep: bool [n], the rows that could be read.
        """
        flagged = np.zeros(len(keep), np.bool_)
        for source, spec in zip(self._sources, self.columns, strict=True):
            if spec.name in names and spec.shape == () and not spec.variable_length:
                flagged[keep] |= np.asarray(columns[spec.name]).astype(np.bool_)
                if not keep.all():
                    others = part.table.column(source).filter(pa.array(~keep))
                    flagged[~keep] |= _readable_flags(storage_array(others), spec)
        return flagged

    def _check(self, block: EpisodeBlock) -> EpisodeBlock:
        """Checks a block, and drops its check columns.

        Findings are added per block, not per part: rows that were read ahead of a block are read again by a resumed
        run.
        """
        columns = {
            name: block.columns[name]
            for name in block.columns
            if not name.startswith((_ORDER_CHECK, _PATH_CHECK, _FILE_BEGINS))
        }
        for source, from_zero in self._orders.items():
            numbers = block.columns[_ORDER_CHECK + source]
            check_step_order(block, numbers, source, self.findings, from_zero=from_zero)
        if _FILE_BEGINS in block.columns:
            self._check_crossing(block)
        for name in block.columns.keys() - columns.keys():
            if name.startswith(_PATH_CHECK) and (paths := block.columns[name]).any():
                episode, step = block.locate(int(np.argmax(paths)))
                place = place_of(block, episode, step)
                self.findings.add(paths_left_out(int(paths.sum()), *place, name.removeprefix(_PATH_CHECK)))
        return replace(block, columns=columns)

    def _check_crossing(self, block: EpisodeBlock) -> None:
        """Adds a finding for episodes that continue in the next file.

        Episodes whose step numbers continue too are not reported.
        """
        crossings = block.columns[_FILE_BEGINS].copy()
        crossings[block.offsets[:-1]] = False
        for source in self._orders:
            numbers = block.columns[_ORDER_CHECK + source]
            crossings[1:] &= numbers[1:] != numbers[:-1] + 1
        if crossings.any():
            episode, _ = block.locate(int(np.argmax(crossings)))
            message = (
                "an episode continues in the next file; kept as one episode. If every file numbers its episodes from "
                "the start, give the episodes unique ids, or convert the files one by one"
            )
            place = place_of(block, episode)
            self.findings.add(Finding("episode-crosses-files", message, int(crossings.sum()), *place, self._ids[0]))


def _readable_flags(array: pa.Array, spec: ColumnSpec) -> npt.NDArray[np.bool_]:
    """Returns flags as bool [n]. A flag that cannot be read is not set."""
    try:
        return np.asarray(column_values(array, spec)).astype(np.bool_)
    except IrregularRowsError as error:
        flags, readable = np.zeros(len(array), np.bool_), np.delete(np.arange(len(array)), error.rows)
        flags[readable] = _readable_flags(array.take(pa.array(readable)), spec)
        return flags


def _file_begins(part: TablePart) -> npt.NDArray[np.bool_]:
    """Returns bool [n]: whether each row of a part is the first of its file."""
    begins = np.zeros(len(part.table), np.bool_)
    first = 0
    for run in part.file_rows:
        begins[first] = run.position.row == 0
        first += run.count
    return begins


def _split_by_file(steps: StepPart, part: TablePart) -> Iterator[StepPart]:
    """Yields the steps of each file of a part."""
    first = 0
    for i, run in enumerate(part.file_rows):
        cut = steps.cut(first, first + run.count)
        continues = i + 1 < len(part.file_rows)
        yield replace(cut, file=run.position.file, name=run.name, continues=continues)
        first += run.count


def _require_ids(schema: pa.Schema, column: str) -> None:
    """Checks that the episode column holds numbers or text. Reading refuses fractions.

    Raises UnsupportedColumnError otherwise.
    """
    type_ = schema.field(column).type
    if not (pa.types.is_integer(type_) or is_text(type_) or is_float(type_)):
        raise UnsupportedColumnError(
            f"holds {type_}, where episode ids are integers or text",
            column=column,
            hint="choose another column with --episode-column (episodes=EpisodeBoundaries(episode_column=...))",
        )


def _no_ends() -> UnknownFormatError:
    """Returns the error about tables in which nothing says where episodes end."""
    return UnknownFormatError(
        f"has neither an episode column ({', '.join(EPISODE_COLUMNS)}), nor an end flag, nor next observations",
        hint="name it with --episode-column, --end-column or --step-column (episodes=EpisodeBoundaries(...)); if "
        "each file is one episode, give --file-is-episode (file_is_episode=True)",
    )


FORMAT = Format(
    "step-rows",
    probe,
    open_,
    uses=frozenset({"episode_column", "step_column", "end_column", "file_is_episode", "dtype", "fill_null", "header"}),
    suffixes=TABLE_SUFFIXES,
    beside=BESIDE_TABLES,
    in_time_order=True,
)
