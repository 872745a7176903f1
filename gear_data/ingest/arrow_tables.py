"""A stream of Arrow tables from Parquet files or a `datasets` object: what row-shaped formats read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.source import Unit
from gear_data.storage.block import BEGIN, Position

#: Bytes in memory of a table handed out at once, as far as they can be foreseen.
_BATCH_BYTES = 16 << 20
#: Rows that say how large others will be.
_HEAD_ROWS = 64
_ONE_TYPE = "give the dataset features (datasets.Features), or bring the column to one type"


@dataclass(frozen=True)
class TablePart:
    """Consecutive rows of one file: `position` is that of the first."""

    position: Position
    name: str
    table: pa.Table


class TableStream(Protocol):
    """Tables in source order."""

    schema: pa.Schema
    num_rows: int | None

    def select(self, columns: list[str]) -> None:
        """Reads only these columns from now on."""

    def head(self, rows: int) -> pa.Table | None:
        """The first rows, at most so many; None if there are none."""

    def units(self) -> Sequence[Unit]:
        """Files and row groups, see `EpisodeSource.units`."""

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


def read_ahead(parts: Iterator[TablePart]) -> Iterator[TablePart]:
    """The same parts, the next one being read and decoded in a thread while the present one is worked on."""
    with ThreadPoolExecutor(1, thread_name_prefix="gear-read") as reader:
        coming = reader.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, parts, None)
            yield part


def open_parquet(file: SourceFile) -> pq.ParquetFile:
    """Raises CorruptSourceError: empty, cut short, a Git-LFS pointer, not Parquet."""
    file.check_readable()
    try:
        return pq.ParquetFile(file.path if file.filesystem is None else file.open())
    except (pa.ArrowException, OSError) as error:
        raise corrupt_parquet(file.name, error) from error


def corrupt_parquet(name: str, error: Exception) -> CorruptSourceError:
    return CorruptSourceError(
        f"not a whole Parquet file: {error}", file=name, hint="it may have been cut short: download it again"
    )


class ParquetTables:
    """Tables of Parquet files of one schema. One file is open at a time; in memory are the compressed column chunks of
    a row group, and one table.

    Args:
        files: in source order.

    Raises:
        CorruptSourceError: a file is not Parquet, or its columns are not those of the first.
    """

    def __init__(self, files: tuple[SourceFile, ...]) -> None:
        self._files = files
        self._columns: list[str] | None = None
        self._row_bytes = 0.0
        first = open_parquet(files[0])
        self.schema: pa.Schema = first.schema_arrow
        # Counting the rows of every file would open every file; the bar goes by rows only where that is cheap.
        self.num_rows: int | None = first.metadata.num_rows if len(files) == 1 else None
        first.close()

    def select(self, columns: list[str]) -> None:
        self._columns = columns

    def head(self, rows: int) -> pa.Table | None:
        for file in self._files:
            with open_parquet(file) as parquet:
                try:
                    batch = next(parquet.iter_batches(batch_size=rows, columns=self._columns), None)
                except (pa.ArrowException, OSError) as error:
                    raise corrupt_parquet(file.name, error) from error
                if batch is not None and len(batch):
                    self._row_bytes = max(self._row_bytes, batch.nbytes / len(batch))
                    return pa.Table.from_batches([batch])
        return None

    def units(self) -> Sequence[Unit]:
        return (Unit(BEGIN, sum(file.size for file in self._files)),)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            yield from self._file_parts(index, first)

    def _file_parts(self, index: int, first: int) -> Iterator[TablePart]:
        file = self._files[index]
        with open_parquet(file) as parquet:
            self._check_schema(parquet.schema_arrow, file.name)
            row = 0
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if row + rows > first:
                    yield from self._group_parts(parquet, Position(index, row), group, first)
                row += rows

    def _group_parts(self, parquet: pq.ParquetFile, position: Position, group: int, first: int) -> Iterator[TablePart]:
        name = self._files[position.file].name
        row_bytes = max(self._row_bytes, _encoded_row_bytes(parquet, group, self._columns))
        batches = parquet.iter_batches(batch_size=_batch_rows(row_bytes), row_groups=[group], columns=self._columns)
        row = position.row
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise corrupt_parquet(name, error) from error
            if batch is None:
                return
            # Encoded pages may be far smaller than what they hold: what was read foretells what is to come.
            self._row_bytes = max(self._row_bytes, batch.nbytes / max(1, len(batch)))
            skip = max(0, first - row)
            if skip < len(batch):
                table = pa.Table.from_batches([batch]).slice(skip)
                yield TablePart(Position(position.file, row + skip), name, table)
            row += len(batch)

    def _check_schema(self, schema: pa.Schema, name: str) -> None:
        # Field by field: files of one dataset may differ in metadata and in field order.
        if {field.name: field.type for field in schema} == {field.name: field.type for field in self.schema}:
            return
        for field in self.schema:
            index = schema.get_field_index(field.name)
            if index < 0:
                raise CorruptSourceError(
                    f"the column is missing; {self._files[0].name} has it", file=name, column=field.name
                )
            if schema.field(index).type != field.type:
                raise CorruptSourceError(
                    f"the column is {schema.field(index).type}, in {self._files[0].name} it is {field.type}",
                    file=name,
                    column=field.name,
                )
        extra = next(field.name for field in schema if self.schema.get_field_index(field.name) < 0)
        raise CorruptSourceError(f"the column is not in {self._files[0].name}", file=name, column=extra)


def _encoded_row_bytes(parquet: pq.ParquetFile, group: int, columns: list[str] | None) -> float:
    """Mean bytes of a row of a row group, compression undone, of the columns that are read."""
    metadata = parquet.metadata.row_group(group)
    chunks = (metadata.column(i) for i in range(metadata.num_columns))
    total: int = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if columns is None or any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns)
    )
    return total / max(1, int(metadata.num_rows))


class DatasetTables:
    """Tables of a `datasets.Dataset` or `IterableDataset`, through its Arrow format."""

    def __init__(self, location: Location) -> None:
        self._dataset: Any = location.dataset.with_format("arrow")
        self._name = location.name
        self.num_rows: int | None = getattr(location.dataset, "num_rows", None)
        if location.dataset.features is not None:
            self.schema: pa.Schema = location.dataset.features.arrow_schema
        else:  # an IterableDataset made without features knows them from its first row
            first = next(iter(self._dataset.iter(batch_size=1)), None)
            self.schema = pa.schema([]) if first is None else first.schema

    def select(self, columns: list[str]) -> None:
        self._dataset = self._dataset.select_columns(columns)

    def head(self, rows: int) -> pa.Table | None:
        table = next(iter(self._dataset.iter(batch_size=rows)), None)
        return table if table is not None and len(table) else None

    def units(self) -> Sequence[Unit]:
        return (Unit(BEGIN, 0),)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        dataset, row = self._dataset, start.row
        if row:
            dataset = dataset.skip(row)
        head = self.head(_HEAD_ROWS)
        if head is None:
            return
        batches = dataset.iter(batch_size=_batch_rows(head.nbytes / len(head)))
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
            yield TablePart(Position(0, row), self._name, table)
            row += len(table)

    def _check_types(self, table: pa.Table, row: int) -> None:
        # Without features every batch has the types that its own rows suggest.
        for field in table.schema:
            expected = self.schema.field(field.name).type
            if field.type != expected:
                raise CorruptSourceError(
                    f"is {field.type} here, and {expected} in the first row",
                    file=self._name,
                    column=field.name,
                    row=row,
                    hint=_ONE_TYPE,
                )


def _batch_rows(row_bytes: float) -> int:
    """Rows to read at once, of so many bytes each in memory."""
    return int(max(1, min(65536, _BATCH_BYTES / max(1.0, row_bytes))))
