"""Stream over an Arrow table in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.flatten import FlattenedColumn, flat_columns, flatten_table, is_by_pandas
from gear_data.ingest.sources.tables.read_units import ReadSpan
from gear_data.ingest.sources.tables.stream import FileRows, TablePart
from gear_data.storage.episode_block import BEGIN, Position

#: Bytes of one part.
_PART_BYTES = 16 << 20


class MemoryTable:
    """A `TableStream` over one Arrow table."""

    is_one_table = True
    files: tuple[SourceFile, ...] = ()

    def __init__(self, table: pa.Table, name: str) -> None:
        self._table = table
        self.by_pandas = is_by_pandas(table.schema)
        self._name = name
        self._columns: dict[str, FlattenedColumn] = flat_columns(table.schema, name)
        self.schema = pa.schema([(name, column.type) for name, column in self._columns.items()])
        self.num_rows: int | None = len(table)

    def select(self, columns: list[str]) -> None:
        self._columns = {name: self._columns[name] for name in columns}

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
