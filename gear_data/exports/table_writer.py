"""Parquet files that are written table by table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


class TableWriter:
    """A Parquet file with the columns of the first table that is written; there is no file before that. A table is a
    row group."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table, row_group_size=len(table))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
