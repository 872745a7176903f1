"""Stream of Arrow tables from files of one kind and one schema."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile, files_to_compare, separate_datasets_hint
from gear_data.ingest.source import UNIT_BYTES, files_between
from gear_data.ingest.sources.tables.fetched_files import fetched_ahead
from gear_data.ingest.sources.tables.files.kind import FETCH_BYTES, BatchSizer, FileKind, RowGroups, TableFile
from gear_data.ingest.sources.tables.flatten import (
    FlattenedColumn,
    flat_columns,
    flat_schema,
    flatten_table,
    is_by_pandas,
    with_types,
)
from gear_data.ingest.sources.tables.read_units import (
    FirstEpisodeStart,
    IdRange,
    ReadSpan,
    SplittableFiles,
    episode_spans,
    step_spans,
)
from gear_data.ingest.sources.tables.stream import FileRows, TablePart
from gear_data.ingest.sources.tables.to_numpy import leaf_type
from gear_data.storage.episode_block import BEGIN, Position

#: Bytes in memory of one table, as far as the footers can tell.
_BATCH_BYTES = 16 << 20
_HEAD_BYTES = 64 << 20
#: Batches that are decoded for one table, so that a batch of very long episodes does not multiply the table's size.
_BATCHES = 16
_SEPARATELY = (
    "convert the files of each type separately, without this column (--columns), and merge the datasets "
    "(gear-data merge)"
)


class FileTables:
    """A `TableStream` over files of one kind and one schema.

    One file is open at a time. Memory holds one table, and the buffers of the kind's reader.

    Args:
        files: the files, in source order.
        kind: the kind of all files.
        is_one_table: whether the files are known to be consecutive parts of one table.
        types: returns column -> type of the numbers in it, given the flattened schema. Kinds that are not `splittable`
            read integers so, and floats as float64: their files do not store types. Of others, these columns may have
            other numbers in other files.
        as_json: see `flat_columns`.

    Raises:
        CorruptSourceError: a file is not of the kind, or its columns differ from the first file's.
        UnsupportedColumnError: two columns have the same name.
    """

    def __init__(
        self,
        files: tuple[SourceFile, ...],
        kind: FileKind,
        *,
        is_one_table: bool = False,
        types: Callable[[pa.Schema], Mapping[str, pa.DataType]] = lambda schema: {},
        as_json: Set[str] = frozenset(),
    ) -> None:
        self.files = files
        self.is_one_table = is_one_table
        self._kind = kind
        self._batch_sizer = BatchSizer(_BATCH_BYTES // _BATCHES)
        with kind.open(files[0], None) as first, kind.reading(files[0].name):
            self._stored: pa.Schema = first.schema
            #: File index -> row groups, for the files that were asked for them.
            self._footers = {0: first.row_groups()}
            # Inside `reading`, because this decodes all names, which may not be UTF-8.
            self._columns = flat_columns(self._stored, files[0].name, as_json)
        chosen = types(pa.schema([(name, column.type) for name, column in self._columns.items()]))
        self._any_numbers = {self._columns[name].path[0] for name in chosen}
        if not kind.splittable:
            # Not smaller, nor as flags: `CastTables` refuses numbers that do not fit.
            wide = {
                self._columns[name].path: pa.float64() if pa.types.is_floating(type_) else type_
                for name, type_ in chosen.items()
                if not pa.types.is_boolean(type_)
            }
            self._stored = with_types(self._stored, wide)
            self._columns = flat_columns(self._stored, files[0].name, as_json)
        self.by_pandas = kind.by_pandas or is_by_pandas(self._stored)
        self.schema = self.uncast = flat_schema(self._columns, self._stored)

    @property
    def num_rows(self) -> int | None:
        """Number of rows, partly estimated.

        It is exact for files whose row groups are known. For the others it is estimated from their sizes, because an
        exact number would open every file.
        """
        read = sum(self.files[index].size for index in self._footers)
        rows, size = [groups.total_rows for groups in self._footers.values()], sum(file.size for file in self.files)
        return None if None in rows else sum(filter(None, rows)) * size // read or None

    def select(self, columns: list[str]) -> None:
        self._columns = {name: self._columns[name] for name in columns}

    def head(self, rows: int) -> pa.Table | None:
        for file in self.files:
            batches: list[pa.RecordBatch] = []
            found = size = 0
            with self._open(file) as opened:
                groups = range(len(opened.row_groups().rows))
                for batch in opened.batches(groups, list(self._columns.values()), BatchSizer(_HEAD_BYTES // _BATCHES)):
                    batches.append(batch)
                    found, size = found + len(batch), size + batch.nbytes
                    if found >= rows or size >= _HEAD_BYTES:
                        break
            if found:
                return flatten_table(pa.Table.from_batches(batches).slice(0, rows), self._columns)
        return None

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        sizes = [file.size for file in self.files]
        for index in files_to_compare([file.name for file in self.files], sizes, UNIT_BYTES):
            self._footer(index)
        if ids is None:
            return episode_spans(self.files, self._footer)
        if not self._kind.splittable:  # comparing the ids would read all files
            return (ReadSpan(BEGIN, sum(sizes)),)
        return step_spans(
            SplittableFiles(
                self.files,
                self._footer,
                partial(self._id_range, ids),
                partial(self._first_start, ids),
            )
        )

    def _footer(self, index: int) -> RowGroups:
        """Returns the row groups of a file, which has been compared with the first file."""
        if index not in self._footers:
            with self._open(self.files[index]) as opened:
                self._footers[index] = opened.row_groups()
        return self._footers[index]

    def _id_values(self, column: FlattenedColumn, index: int, groups: range) -> Iterator[pa.Array]:
        """Yields the values of a column in some row groups of a file."""
        with self._open(self.files[index]) as opened:
            for batch in opened.batches(groups, [column], BatchSizer(_BATCH_BYTES // _BATCHES)):
                yield flatten_table(pa.Table.from_batches([batch]), {column.name: column}).column(0).combine_chunks()

    def _id_range(self, name: str, index: int, groups: range) -> IdRange | None:
        """Returns the smallest and largest id in row groups of a file.

        Returns None if there are no ids, or an id is null.
        """
        extremes: list[Any] = []
        for values in self._id_values(self._columns[name], index, groups):
            if values.null_count:
                return None
            extremes += _min_max(values)
        return (min(extremes), max(extremes)) if extremes else None

    def _first_start(self, name: str, index: int, group: int) -> FirstEpisodeStart | None:
        """Finds the first row of a row group at which the id changes.

        Returns None if there are no ids, or an id is null.
        """
        before: list[Any] = []
        after: list[Any] = []
        row = 0
        for values in self._id_values(self._columns[name], index, range(group, group + 1)):
            if values.null_count:
                return None
            count = 0
            if not after:
                change = pc.index(pc.not_equal(values, before[0] if before else values[0]), True).as_py()
                count = len(values) if change < 0 else change
                before += _min_max(values[:count])
                row += count
            after += _min_max(values[count:])
        if not before:
            return None
        return FirstEpisodeStart(row, (min(before), max(before)), (min(after), max(after)) if after else None)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        pending: list[tuple[FileRows, pa.RecordBatch]] = []
        size = 0
        for run, batch in self._batches(start, stop):
            if pending and not batch.schema.equals(pending[-1][1].schema):
                yield self._part(pending)
                pending, size = [], 0
            pending.append((run, batch))
            size += batch.nbytes
            if size >= _BATCH_BYTES:
                yield self._part(pending)
                pending, size = [], 0
        if pending:
            yield self._part(pending)

    def _part(self, batches: list[tuple[FileRows, pa.RecordBatch]]) -> TablePart:
        table = pa.Table.from_batches([batch for _, batch in batches])
        return TablePart(_joined(run for run, _ in batches), flatten_table(table, self._columns))

    def _batches(self, start: Position, stop: Position) -> Iterator[tuple[FileRows, pa.RecordBatch]]:
        """Yields the rows from `start` up to `stop`, not flattened."""
        files = self.files[start.file : stop.file + (stop.row > 0)]
        # Libraries read the files of other kinds.
        with closing(fetched_ahead(files if self._kind.splittable else ())) as fetched:
            for index, first, last in files_between(start, stop, len(self.files)):
                with self._open(next(fetched, self.files[index])) as opened:
                    for row, groups in _row_group_runs(opened.row_groups(), first, last):
                        yield from self._run_batches(index, opened, row, groups, first, last)

    def _run_batches(
        self, index: int, opened: TableFile, row: int, groups: range, first: int, last: int | None
    ) -> Iterator[tuple[FileRows, pa.RecordBatch]]:
        """Yields the rows [first, last) of consecutive row groups.

        `row` is the first row of the groups.
        """
        for batch in opened.batches(groups, list(self._columns.values()), self._batch_sizer):
            skip, stop = max(0, first - row), len(batch) if last is None else min(len(batch), last - row)
            if skip < stop:
                run = FileRows(Position(index, row + skip), self.files[index].name, stop - skip)
                yield run, batch.slice(skip, stop - skip)
            row += len(batch)
            if last is not None and row >= last:
                return

    @contextmanager
    def _open(self, file: SourceFile) -> Iterator[TableFile]:
        """Opens a file and compares its schema with the first file's."""
        with self._kind.open(file, self._stored) as opened:
            with self._kind.reading(file.name):
                _check_schema(opened.schema, file.name, self._stored, self.files, self._any_numbers)
            yield opened


def _joined(runs: Iterable[FileRows]) -> tuple[FileRows, ...]:
    """Joins rows that follow each other in a file.

    Each run of rows is cut and assembled separately, which takes time.
    """
    joined: list[FileRows] = []
    for run in runs:
        if joined and run.position == (joined[-1].position.file, joined[-1].position.row + joined[-1].count):
            joined[-1] = replace(joined[-1], count=joined[-1].count + run.count)
        else:
            joined.append(run)
    return tuple(joined)


def _min_max(values: pa.Array) -> list[Any]:
    """Returns the smallest and largest value; an empty list for no values."""
    extremes = pc.min_max(values).as_py() if len(values) else {}
    return list(extremes.values())


def _check_schema(
    schema: pa.Schema, name: str, model: pa.Schema, files: Sequence[SourceFile], any_numbers: Set[str]
) -> None:
    """Checks that a file has the columns of the first file.

    Their order and metadata may differ.

    Args:
        schema: the schema of the file.
        name: the name of the file.
        model: the schema of the first file.
        files: all files of the source.
        any_numbers: columns of numbers that may have another type.

    Raises:
        CorruptSourceError: a column is missing, additional or duplicated, or has another type.
    """
    names = [field.name for field in schema]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise CorruptSourceError(
            "two columns have this name", file=name, column=duplicate, hint="rename one of them in the source"
        )
    if schema.equals(model) or {f.name: f.type for f in schema} == {f.name: f.type for f in model}:
        return
    first = files[0].name
    folders = separate_datasets_hint([file.name for file in files], first, name)
    hint = folders or _SEPARATELY
    for field in model:
        index = schema.get_field_index(field.name)
        if index < 0:
            raise CorruptSourceError(f"the column is missing; {first} has it", file=name, column=field.name, hint=hint)
        type_ = schema.field(index).type
        if type_ == field.type:
            continue
        numbers = _is_number(leaf_type(type_)) and _is_number(leaf_type(field.type))
        if not numbers or field.name not in any_numbers:
            cast = f"read the numbers of all files as one dtype: --dtype {shlex.quote(field.name)}=float64"
            raise CorruptSourceError(
                f"the column is {type_}, in {first} it is {field.type}",
                file=name,
                column=field.name,
                hint=folders or cast if numbers else hint,
            )
    for field in schema:
        if model.get_field_index(field.name) < 0:
            raise CorruptSourceError(f"the column is not in {first}", file=name, column=field.name, hint=hint)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _row_group_runs(row_groups: RowGroups, first: int, stop: int | None) -> Iterator[tuple[int, range]]:
    """Yields runs of row groups that are read at once.

    An item is the first row of the run, and the indices of its row groups. Together the runs hold the rows
    [first, stop), and the rows before `first` in the same row group. A `stop` of None is the end of the file.
    """
    run_start, row, run_row, size = 0, 0, 0, 0
    for group, (rows, stored) in enumerate(zip(row_groups.rows, row_groups.stored, strict=True)):
        if row + rows <= first:
            run_start, run_row = group + 1, row + rows
        elif stop is not None and row >= stop:
            if run_start < group:
                yield run_row, range(run_start, group)
            return
        else:
            size += stored
            if size >= FETCH_BYTES:
                yield run_row, range(run_start, group + 1)
                run_start, run_row, size = group + 1, row + rows, 0
        row += rows
    if run_start < len(row_groups.rows):
        yield run_row, range(run_start, len(row_groups.rows))
