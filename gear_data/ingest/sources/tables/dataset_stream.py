"""Stream of Arrow tables from a HuggingFace `datasets` object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.tables.flatten import FlattenedColumn, flat_columns, flatten_table
from gear_data.ingest.sources.tables.read_units import ReadSpan
from gear_data.ingest.sources.tables.stream import FileRows, TablePart
from gear_data.storage.episode_block import BEGIN, Position

#: Bytes in memory of one table, estimated from the first rows.
_BATCH_BYTES = 16 << 20
_MAX_BATCH_ROWS = 65536
_HEAD_ROWS = 64
_ONE_TYPE = "give the dataset features (datasets.Features), or convert the column to one type"


class DatasetTables:
    """A `TableStream` over a `datasets.Dataset` or `IterableDataset`.

    It uses the Arrow format of `datasets`.
    """

    is_one_table = True
    by_pandas = False

    def __init__(self, location: Location) -> None:
        self.files: tuple[SourceFile, ...] = ()
        self._dataset: Any = location.dataset.with_format("arrow")
        self._name = location.name
        self.num_rows: int | None = getattr(location.dataset, "num_rows", None)
        if location.dataset.features is not None:
            self._stored: pa.Schema = location.dataset.features.arrow_schema
        else:  # an IterableDataset without features: its first row gives the types
            first = next(iter(self._dataset.iter(batch_size=1)), None)
            self._stored = pa.schema([]) if first is None else first.schema
        self._columns: dict[str, FlattenedColumn] = flat_columns(self._stored, self._name)
        self.schema = pa.schema([(name, column.type) for name, column in self._columns.items()])

    def select(self, columns: list[str]) -> None:
        self._columns = {name: self._columns[name] for name in columns}
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
                    f"rows from {row} on cannot be read as one table: {error}", file=self._name, hint=_ONE_TYPE
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
                    hint=_ONE_TYPE,
                )
