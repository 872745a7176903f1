"""A stream of Arrow tables from Parquet files or a `datasets` object: what row-shaped formats read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.tables.flatten import FlatColumn, flat_columns, flatten_table
from gear_data.ingest.sources.tables.parquet import (
    BatchSizer,
    RowGroups,
    check_schema,
    open_parquet,
    read_batches,
    reading,
    row_groups,
    runs,
)
from gear_data.ingest.sources.tables.read_units import (
    FirstEpisodeStart,
    IdRange,
    ReadSpan,
    SplittableFiles,
    episode_spans,
    step_spans,
)
from gear_data.storage.block import BEGIN, Position

#: Bytes in memory of a table handed out at once, as far as they can be foreseen.
_BATCH_BYTES = 16 << 20
#: Rows that say how large others will be.
_HEAD_ROWS = 64
_HEAD_BYTES = 64 << 20
#: Batches decoded for a table, so that one of unusually long episodes is not many times as large.
_BATCHES = 16
_Part = TypeVar("_Part")
_ONE_TYPE = "give the dataset features (datasets.Features), or bring the column to one type"


@dataclass(frozen=True)
class FileRows:
    """Consecutive rows of one file: `count` of them from `position` on."""

    position: Position
    name: str
    count: int


@dataclass(frozen=True)
class TablePart:
    """Consecutive rows of a source, read at once: of one file, or of several small ones."""

    file_rows: tuple[FileRows, ...]
    table: pa.Table

    @property
    def position(self) -> Position:
        """Of the first row."""
        return self.file_rows[0].position

    def place(self, row: int) -> tuple[str, int]:
        """File and source row of a row of the table."""
        for rows_of_file in self.file_rows[:-1]:
            if row < rows_of_file.count:
                return rows_of_file.name, rows_of_file.position.row + row
            row -= rows_of_file.count
        return self.file_rows[-1].name, self.file_rows[-1].position.row + row

    def rows(self) -> npt.NDArray[np.int64]:
        """int64 [n]: source rows, as each file counts them."""
        return np.concatenate(
            [np.arange(s.position.row, s.position.row + s.count, dtype=np.int64) for s in self.file_rows]
        )

    def names(self) -> list[str]:
        """The file of each row."""
        return [name for s in self.file_rows for name in [s.name] * s.count]


class TableStream(Protocol):
    """Tables in source order, their columns plain (`arrow_plain`)."""

    #: Of all columns there are.
    schema: pa.Schema

    @property
    def num_rows(self) -> int | None:
        """About how many rows there are, as far as is known; None if nothing is."""

    def select(self, columns: list[str]) -> None:
        """Reads only these columns from now on."""

    def head(self, rows: int) -> pa.Table | None:
        """The first rows, at most so many; None if there are none."""

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        """Where reading may begin, the first at `BEGIN`. Where a row is a step, `ids` is the column that tells episodes
        apart; without it a row is an episode."""

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        """All rows from `start` on, which need not be where a part began, up to `stop`."""


def open_tables(location: Location) -> TableStream | None:
    """The tables at a location; None where it holds neither Parquet files nor a `datasets` object."""
    if location.dataset is not None:
        return DatasetTables(location)
    files = location.with_suffix(".parquet")
    return ParquetTables(files) if files else None


def require_tables(location: Location) -> TableStream:
    """The tables at a location. Raises UnknownFormatError where there are none."""
    tables = open_tables(location)
    if tables is None:
        raise UnknownFormatError("holds no Parquet file", file=location.name, hint="leave --format out")
    return tables


def read_ahead(parts: Iterator[_Part]) -> Iterator[_Part]:
    """The same parts, the next one being read and decoded in a thread while the present one is worked on."""
    with ThreadPoolExecutor(1, thread_name_prefix="gear-read") as reader:
        coming = reader.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, parts, None)
            yield part


class ParquetTables:
    """Tables of Parquet files of one schema. One file is open at a time; in memory are a buffer for every column and
    one table, however large the row groups are.

    Args:
        files: in source order.

    Raises:
        CorruptSourceError: a file is not Parquet, or its columns are not those of the first.
        UnsupportedColumnError: two columns have one name.
    """

    def __init__(self, files: tuple[SourceFile, ...]) -> None:
        self._files = files
        self._pace = BatchSizer(_BATCH_BYTES // _BATCHES)
        with open_parquet(files[0]) as first, reading(files[0].name):
            self._stored: pa.Schema = first.schema_arrow
            self._rows = {0: int(first.metadata.num_rows)}
            self._plain = flat_columns(self._stored, files[0].name)  # looks at all names: they may not be UTF-8
        self.schema = pa.schema([(name, column.type) for name, column in self._plain.items()])

    @property
    def num_rows(self) -> int | None:
        """Of the files whose footers were read the rows they have. The others' are judged by their sizes: to count them
        every file would have to be opened."""
        read = sum(self._files[index].size for index in self._rows)
        rows, size = sum(self._rows.values()), sum(file.size for file in self._files)
        return rows * size // read or None

    def select(self, columns: list[str]) -> None:
        self._plain = {name: self._plain[name] for name in columns}

    def head(self, rows: int) -> pa.Table | None:
        for file in self._files:
            with open_parquet(file) as parquet:
                self._check(parquet, file)
                head = parquet.schema_arrow.empty_table()
                pace = BatchSizer(_HEAD_BYTES // _BATCHES)
                batches: list[pa.RecordBatch] = []
                for batch in read_batches(file, parquet, range(parquet.num_row_groups), self._needed(), pace):
                    batches.append(batch)
                    head = pa.Table.from_batches(batches)
                    if len(head) >= rows or head.nbytes >= _HEAD_BYTES:
                        break
            if len(head):
                return flatten_table(head.slice(0, rows), self._plain)
        return None

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        if ids is None:
            return episode_spans(self._files, self._footer)
        return step_spans(
            SplittableFiles(self._files, self._footer, partial(self._ids, ids), partial(self._start, ids))
        )

    def _footer(self, index: int) -> RowGroups:
        with open_parquet(self._files[index]) as parquet:
            found = row_groups(parquet, self._files[index])
        self._rows[index] = sum(found.rows)
        return found

    def _id_values(self, column: FlatColumn, index: int, groups: range) -> Iterator[pa.Array]:
        file = self._files[index]
        with open_parquet(file) as parquet:
            self._check(parquet, file)
            for batch in read_batches(file, parquet, groups, [column.stored], BatchSizer(_BATCH_BYTES // _BATCHES)):
                yield flatten_table(pa.Table.from_batches([batch]), {column.name: column}).column(0).combine_chunks()

    def _ids(self, name: str, index: int, groups: range) -> IdRange | None:
        found: list[Any] = []
        for values in self._id_values(self._plain[name], index, groups):
            if values.null_count:
                return None
            found += _range(values)
        return (min(found), max(found)) if found else None

    def _start(self, name: str, index: int, group: int) -> FirstEpisodeStart | None:
        before: list[Any] = []
        after: list[Any] = []
        row = 0
        for values in self._id_values(self._plain[name], index, range(group, group + 1)):
            if values.null_count:
                return None
            count = 0
            if not after:
                change = pc.index(pc.not_equal(values, before[0] if before else values[0]), True).as_py()
                count = len(values) if change < 0 else change
                before += _range(values[:count])
                row += count
            after += _range(values[count:])
        if not before:
            return None
        return FirstEpisodeStart(row, (min(before), max(before)), (min(after), max(after)) if after else None)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        held: list[tuple[FileRows, pa.RecordBatch]] = []
        size = 0
        for rows_of_file, batch in self._stretches(start, stop):
            if held and not batch.schema.equals(held[-1][1].schema):
                yield self._part(held)
                held, size = [], 0
            held.append((rows_of_file, batch))
            size += batch.nbytes
            if size >= _BATCH_BYTES:
                yield self._part(held)
                held, size = [], 0
        if held:
            yield self._part(held)

    def _part(self, held: list[tuple[FileRows, pa.RecordBatch]]) -> TablePart:
        table = pa.Table.from_batches([batch for _, batch in held])
        return TablePart(tuple(rows_of_file for rows_of_file, _ in held), flatten_table(table, self._plain))

    def _stretches(self, start: Position, stop: Position) -> Iterator[tuple[FileRows, pa.RecordBatch]]:
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            last = stop.row if index == stop.file else None
            file = self._files[index]
            with open_parquet(file) as parquet:
                self._check(parquet, file)
                for row, groups in runs(row_groups(parquet, file), first, last):
                    yield from self._run(index, parquet, row, groups, first, last)

    def _run(
        self, index: int, parquet: pq.ParquetFile, row: int, groups: range, first: int, last: int | None
    ) -> Iterator[tuple[FileRows, pa.RecordBatch]]:
        """The rows of these groups, the first of which is `row`, from `first` to `last`."""
        for batch in read_batches(self._files[index], parquet, groups, self._needed(), self._pace):
            skip, stop = max(0, first - row), len(batch) if last is None else min(len(batch), last - row)
            if skip < stop:
                rows_of_file = FileRows(Position(index, row + skip), self._files[index].name, stop - skip)
                yield rows_of_file, batch.slice(skip, stop - skip)
            row += len(batch)
            if last is not None and row >= last:
                return

    def _needed(self) -> list[str]:
        return list(dict.fromkeys(column.stored for column in self._plain.values()))

    def _check(self, parquet: pq.ParquetFile, file: SourceFile) -> None:
        with reading(file.name):
            check_schema(parquet.schema_arrow, file.name, self._stored, self._files)


def _range(values: pa.Array) -> list[Any]:
    """Least and largest value; nothing of no values."""
    found = pc.min_max(values).as_py() if len(values) else {}
    return list(found.values())


class DatasetTables:
    """Tables of a `datasets.Dataset` or `IterableDataset`, through its Arrow format."""

    def __init__(self, location: Location) -> None:
        self._dataset: Any = location.dataset.with_format("arrow")
        self._name = location.name
        self.num_rows: int | None = getattr(location.dataset, "num_rows", None)
        if location.dataset.features is not None:
            self._stored: pa.Schema = location.dataset.features.arrow_schema
        else:  # an IterableDataset made without features knows them from its first row
            first = next(iter(self._dataset.iter(batch_size=1)), None)
            self._stored = pa.schema([]) if first is None else first.schema
        self._plain: dict[str, FlatColumn] = flat_columns(self._stored, self._name)
        self.schema = pa.schema([(name, column.type) for name, column in self._plain.items()])

    def select(self, columns: list[str]) -> None:
        self._plain = {name: self._plain[name] for name in columns}
        self._dataset = self._dataset.select_columns(list(dict.fromkeys(c.path[0] for c in self._plain.values())))

    def head(self, rows: int) -> pa.Table | None:
        table = next(iter(self._dataset.iter(batch_size=rows)), None)
        return flatten_table(table, self._plain) if table is not None and len(table) else None

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        return (ReadSpan(BEGIN, 0),)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        dataset, row = self._dataset, start.row
        if row:
            dataset = dataset.skip(row)
        head = self.head(_HEAD_ROWS)
        if head is None:
            return
        # Never more rows than so many, however small the first are.
        rows = max(1, min(65536, _BATCH_BYTES * len(head) // max(1, head.nbytes)))
        batches = dataset.iter(batch_size=rows)
        while True:
            try:
                table = next(batches, None)
            except pa.ArrowException as error:
                raise CorruptSourceError(
                    f"rows from {row} on cannot be read as one table: {error}", file=self._name, hint=_ONE_TYPE
                ) from error
            if table is None:
                return
            self._check_types(table, row)
            rows_of_file = FileRows(Position(0, row), self._name, len(table))
            yield TablePart((rows_of_file,), flatten_table(table, self._plain))
            row += len(table)

    def _check_types(self, table: pa.Table, row: int) -> None:
        # Without features every batch has the types that its own rows suggest.
        for field in table.schema:
            expected = self._stored.field(field.name).type
            if field.type != expected:
                raise CorruptSourceError(
                    f"is {field.type} here, and {expected} in the first row",
                    file=self._name,
                    column=field.name,
                    row=row,
                    hint=_ONE_TYPE,
                )
