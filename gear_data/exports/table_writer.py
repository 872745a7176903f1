"""Writer of Parquet files, table by table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.exports.destination import MARK


class TableWriter:
    """Writer of one Parquet file. Each table becomes a row group.

    The first table creates the file and determines its columns.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, table: pa.Table) -> None:
        """Appends a table."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table, row_group_size=len(table))

    def close(self) -> None:
        """Completes the file."""
        if self._writer is not None:
            self._writer.add_key_value_metadata({MARK: ""})
            self._writer.close()
