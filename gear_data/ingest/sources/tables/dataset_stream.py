"""Streams of Arrow tables from an Arrow table in memory, and from a HuggingFace `datasets` object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.tables.flatten import (
    FlattenedColumn,
    flat_columns,
    flat_schema,
    flatten_table,
    is_by_pandas,
)
from gear_data.ingest.sources.tables.read_units import ReadSpan
from gear_data.ingest.sources.tables.stream import FileRows, TablePart
from gear_data.storage.episode_block import BEGIN, Position

#: Bytes of one part of a table in memory.
_PART_BYTES = 16 << 20
#: Bytes in memory of one table, estimated from the first rows.
_BATCH_BYTES = 16 << 20
_MAX_BATCH_ROWS = 65536
_HEAD_ROWS = 64


class _InMemory:
    """A `TableStream` without files.

    Args:
        stored: the types of the columns, before they are flattened.
        name: the source, for messages.
        described: has the metadata of the fields; None: `stored` has it.
    """

    is_one_table = True
    files: tuple[SourceFile, ...] = ()

    def __init__(self, stored: pa.Schema, name: str, described: pa.Schema | None = None) -> None:
        self._name = name
        self._columns: dict[str, FlattenedColumn] = flat_columns(stored, name)
        self.by_pandas = is_by_pandas(stored)
        self.schema = self.uncast = flat_schema(self._columns, stored if described is None else described)

    def select(self, columns: list[str]) -> None:
        self._columns = {name: self._columns[name] for name in columns}


class MemoryTable(_InMemory):
    """A `TableStream` over one Arrow table."""

    def __init__(self, table: pa.Table, name: str) -> None:
        super().__init__(table.schema, name)
        self._table = table
        self.num_rows: int | None = len(table)

    def head(self, rows: int) -> pa.Table | None:
        return flatten_table(self._table.slice(0, rows), self._columns) if len(self._table) else None

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        return (ReadSpan(BEGIN, self._table.nbytes),)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        rows = max(1, _PART_BYTES * len(self._table) // max(1, self._table.nbytes))
        for row in range(start.row, len(self._table), rows):
            table = self._table.slice(row, rows)
            run = FileRows(Position(0, row), self._name, len(table))
            yield TablePart((run,), flatten_table(table, self._columns))


class DatasetTables(_InMemory):
    """A `TableStream` over a `datasets.Dataset` or `IterableDataset`.

    It uses the Arrow format of `datasets`.
    """

    def __init__(self, location: Location) -> None:
        self._dataset: Any = location.dataset.with_format("arrow")
        self.num_rows: int | None = getattr(location.dataset, "num_rows", None)
        if location.dataset.features is not None:
            self._stored: pa.Schema = location.dataset.features.arrow_schema
        else:  # an IterableDataset without features: its first row gives the types
            first = next(iter(self._dataset.iter(batch_size=1)), None)
            self._stored = pa.schema([]) if first is None else first.schema
        # Features have no metadata of the fields. The table of a dataset that is no stream may have it.
        table = getattr(location.dataset, "data", None)
        super().__init__(self._stored, location.name, None if table is None else table.schema)
        self.by_pandas = False

    def select(self, columns: list[str]) -> None:
        super().select(columns)
        self._dataset = self._dataset.select_columns(
            list(dict.fromkeys(column.path[0] for column in self._columns.values()))
        )

    def head(self, rows: int) -> pa.Table | None:
        table = next(iter(self._dataset.iter(batch_size=rows)), None)
        return flatten_table(table, self._columns) if table is not None and len(table) else None

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        return (ReadSpan(BEGIN, 0),)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        dataset, row = self._dataset, start.row
        if row:
            dataset = dataset.skip(row)
        head = self.head(_HEAD_ROWS)
        if head is None:
            return
        rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * len(head) // max(1, head.nbytes)))
        batches = dataset.iter(batch_size=rows)
        while True:
            try:
                table = next(batches, None)
            except pa.ArrowException as error:
                raise CorruptSourceError(
                    f"rows from {row} on cannot be read as one table: {error}",
                    file=self._name,
                    hint=_one_type("COLUMN"),
                ) from error
            if table is None:
                return
            self._check_groups(table, row)
            run = FileRows(Position(0, row), self._name, len(table))
            yield TablePart((run,), flatten_table(table, self._columns))
            row += len(table)

    def _check_groups(self, table: pa.Table, row: int) -> None:
        """Checks the types of a batch that begins at `row`.

        Without features, `datasets` infers the types per batch.
        """
        for field in table.schema:
            expected = self._stored.field(field.name).type
            if field.type != expected:
                raise CorruptSourceError(
                    f"is {field.type} here, and {expected} in the first row",
                    file=self._name,
                    column=field.name,
                    row=row,
                    hint=_one_type(field.name),
                )


def _one_type(column: str) -> str:
    """Returns the advice for a column of several types. Features do not cast the rows of a stream."""
    return f"convert the column to one type, such as dataset.map(lambda row: {{{column!r}: float(row[{column!r}])}})"
