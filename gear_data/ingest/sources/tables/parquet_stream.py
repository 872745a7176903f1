"""Stream of Arrow tables from Parquet files of one schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gear_data.ingest.location import SourceFile, files_to_compare
from gear_data.ingest.source import UNIT_BYTES
from gear_data.ingest.sources.tables.flatten import FlattenedColumn, flat_columns, flatten_table
from gear_data.ingest.sources.tables.parquet import (
    BatchSizer,
    RowGroups,
    check_schema,
    open_parquet,
    read_batches,
    reading,
    row_group_runs,
    row_groups,
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
from gear_data.storage.episode_block import Position

#: Bytes in memory of one table, as far as the footers can tell.
_BATCH_BYTES = 16 << 20
_HEAD_BYTES = 64 << 20
#: Batches that are decoded for one table, so that a batch of very long episodes does not multiply the table's size.
_BATCHES = 16


class ParquetTables:
    """A `TableStream` over Parquet files of one schema.

    One file is open at a time. Memory holds one buffer per column and one table, whatever the size of the row groups.

    Args:
        files: the files, in source order.

    Raises:
        CorruptSourceError: a file is not Parquet, or its columns differ from the first file's.
        UnsupportedColumnError: two columns have the same name.
    """

    def __init__(self, files: tuple[SourceFile, ...]) -> None:
        self.files = files
        self._batch_sizer = BatchSizer(_BATCH_BYTES // _BATCHES)
        with open_parquet(files[0]) as first, reading(files[0].name):
            self._stored: pa.Schema = first.schema_arrow
            #: File index -> rows, for the files whose footer has been read.
            self._rows = {0: int(first.metadata.num_rows)}
            # Inside `reading`, because this decodes all names, which may not be UTF-8.
            self._columns = flat_columns(self._stored, files[0].name)
        self._footers: dict[int, RowGroups] = {}
        self.schema = pa.schema([(name, column.type) for name, column in self._columns.items()])

    @property
    def num_rows(self) -> int | None:
        """Number of rows, partly estimated.

        It is exact for files whose footers were read. For the others it is estimated from their sizes, because an exact
        number would open every file.
        """
        read = sum(self.files[index].size for index in self._rows)
        rows, size = sum(self._rows.values()), sum(file.size for file in self.files)
        return rows * size // read or None

    def select(self, columns: list[str]) -> None:
        self._columns = {name: self._columns[name] for name in columns}

    def head(self, rows: int) -> pa.Table | None:
        for file in self.files:
            with open_parquet(file) as parquet:
                self._check(parquet, file)
                head = parquet.schema_arrow.empty_table()
                sizer = BatchSizer(_HEAD_BYTES // _BATCHES)
                batches: list[pa.RecordBatch] = []
                for batch in read_batches(file, parquet, range(parquet.num_row_groups), self._stored_names(), sizer):
                    batches.append(batch)
                    head = pa.Table.from_batches(batches)
                    if len(head) >= rows or head.nbytes >= _HEAD_BYTES:
                        break
            if len(head):
                return flatten_table(head.slice(0, rows), self._columns)
        return None

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        sizes = [file.size for file in self.files]
        for index in files_to_compare([file.name for file in self.files], sizes, UNIT_BYTES):
            self._footer(index)
        if ids is None:
            return episode_spans(self.files, self._footer)
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
            with open_parquet(self.files[index]) as parquet:
                self._check(parquet, self.files[index])
                self._footers[index] = row_groups(parquet, self.files[index])
            self._rows[index] = sum(self._footers[index].rows)
        return self._footers[index]

    def _id_values(self, column: FlattenedColumn, index: int, groups: range) -> Iterator[pa.Array]:
        """Yields the values of a column in some row groups of a file."""
        file = self.files[index]
        with open_parquet(file) as parquet:
            self._check(parquet, file)
            for batch in read_batches(file, parquet, groups, [column.stored], BatchSizer(_BATCH_BYTES // _BATCHES)):
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
        return TablePart(tuple(run for run, _ in batches), flatten_table(table, self._columns))

    def _batches(self, start: Position, stop: Position) -> Iterator[tuple[FileRows, pa.RecordBatch]]:
        """Yields the rows from `start` up to `stop`, not flattened."""
        for index in range(start.file, len(self.files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            last = stop.row if index == stop.file else None
            file = self.files[index]
            with open_parquet(file) as parquet:
                self._check(parquet, file)
                for row, groups in row_group_runs(row_groups(parquet, file), first, last):
                    yield from self._run_batches(index, parquet, row, groups, first, last)

    def _run_batches(
        self, index: int, parquet: pq.ParquetFile, row: int, groups: range, first: int, last: int | None
    ) -> Iterator[tuple[FileRows, pa.RecordBatch]]:
        """Yields the rows [first, last) of consecutive row groups.

        `row` is the first row of the groups.
        """
        for batch in read_batches(self.files[index], parquet, groups, self._stored_names(), self._batch_sizer):
            skip, stop = max(0, first - row), len(batch) if last is None else min(len(batch), last - row)
            if skip < stop:
                run = FileRows(Position(index, row + skip), self.files[index].name, stop - skip)
                yield run, batch.slice(skip, stop - skip)
            row += len(batch)
            if last is not None and row >= last:
                return

    def _stored_names(self) -> list[str]:
        return list(dict.fromkeys(column.stored for column in self._columns.values()))

    def _check(self, parquet: pq.ParquetFile, file: SourceFile) -> None:
        with reading(file.name):
            check_schema(parquet.schema_arrow, file.name, self._stored, self.files)


def _min_max(values: pa.Array) -> list[Any]:
    """Returns the smallest and largest value; an empty list for no values."""
    extremes = pc.min_max(values).as_py() if len(values) else {}
    return list(extremes.values())
