"""Parquet files: opening, and reading in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.files.kind import FETCH_BYTES, BatchSizer, FileKind, RowGroups
from gear_data.ingest.sources.tables.flatten import FlattenedColumn

#: Bytes of a column that are read at once. Without this buffer pyarrow reads a whole column chunk, which in a file of
#: one row group is the whole column.
_BUFFER_BYTES = 1 << 20
#: Lists with 64-bit offsets, for episodes of more than 2 GiB of pixels. pyarrow has the option from version 21 on.
_LONG_LISTS: dict[str, Any] = {"list_type": pa.LargeListType} if int(pa.__version__.split(".")[0]) >= 21 else {}


class ParquetTable:
    """An opened Parquet file.

    Nothing but the row groups is read from a footer. If the metadata of a column (`row_group(i).column(j)`) or its
    statistics are damaged, pyarrow (tried with 26.0) ends the process, because C++ exceptions pass through Cython.

    Raises:
        CorruptSourceError: the file is empty, truncated, a Git-LFS pointer, or not Parquet.
    """

    def __init__(self, file: SourceFile, model: pa.Schema | None = None) -> None:
        self._file = file
        try:
            with PARQUET.reading(file.name):
                # With `pre_buffer`, pyarrow would hold all requested row groups in memory.
                self._source = file.path if file.filesystem is None else file.open()
                self._parquet = pq.ParquetFile(self._source, pre_buffer=False, buffer_size=_BUFFER_BYTES, **_LONG_LISTS)
                self.schema: pa.Schema = self._parquet.schema_arrow
        except CorruptSourceError:
            file.check_readable()  # raises a clearer error for empty files and Git-LFS pointers
            raise

    def __enter__(self) -> ParquetTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._parquet.close()

    def row_groups(self) -> RowGroups:
        """Returns the row groups of the file, whose stored bytes are estimated.

        Raises:
            CorruptSourceError: the rows of the row groups do not add up to the rows of the file.
        """
        with PARQUET.reading(self._file.name):
            metadata = self._parquet.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        rows = tuple(int(group.num_rows) for group in groups)
        if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
            raise CorruptSourceError(
                f"declares {metadata.num_rows} rows, but its row groups have {rows[:8]}",
                file=self._file.name,
                hint="the file may have been truncated: download it again",
            )
        encoded = tuple(max(0, int(group.total_byte_size)) for group in groups)
        share = self._file.size / max(1, sum(encoded))
        return RowGroups(rows, encoded, tuple(int(share * size) for size in encoded))

    def batches(self, groups: range, columns: Sequence[FlattenedColumn], sizer: BatchSizer) -> Iterator[pa.RecordBatch]:
        found, parquet, file = self.row_groups(), self._parquet, self._file
        # An upper bound: it also counts columns that are not read, such as images.
        row_bytes = max((found.encoded[group] / max(1, found.rows[group]) for group in groups), default=0.0)
        with PARQUET.reading(file.name):
            if file.filesystem is not None and sum(found.stored[group] for group in groups) <= FETCH_BYTES:
                metadata, buffered = parquet.metadata, {"pre_buffer": True, "buffer_size": _BUFFER_BYTES}
                parquet = pq.ParquetFile(self._source, metadata=metadata, **buffered, **_LONG_LISTS)
            sizer.limit(row_bytes)
            batches = parquet.iter_batches(
                batch_size=sizer.rows,
                row_groups=list(groups),
                columns=list(dict.fromkeys(column.stored for column in columns)),
                use_threads=pa.cpu_count() > 1,
            )
            for batch in batches:
                sizer.update(batch)
                sizer.limit(row_bytes)
                parquet.reader.set_batch_size(sizer.rows)
                yield batch


PARQUET = FileKind("Parquet", ParquetTable)
