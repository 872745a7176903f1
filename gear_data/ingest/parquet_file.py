"""One Parquet file: opened, compared with others, read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError, RemoteError
from gear_data.ingest.location import SourceFile

#: Bytes of a column read at a time. Without such a buffer a whole column chunk is, which of a file of one row group is
#: the whole column.
_BUFFER_BYTES = 1 << 20
#: Stored bytes of row groups that are fetched at once where a file is far away, and small reads cost a round trip each.
_FETCH_BYTES = 64 << 20
#: Elements that a list of 32-bit offsets can have in one batch.
_MAX_ELEMENTS = (1 << 31) - 1
_HAS_LIST_TYPE = int(pa.__version__.split(".")[0]) >= 21

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_NARROW = {"UINT_8": 1, "INT_8": 1, "UINT_16": 2, "INT_16": 2}


def open_parquet(file: SourceFile) -> pq.ParquetFile:
    """Raises CorruptSourceError: empty, cut short, a Git-LFS pointer, not Parquet."""
    try:
        with reading(file.name):
            # With its own buffering on, pyarrow would hold all row groups that it is asked for.
            source = file.path if file.filesystem is None else file.open()
            return pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    except CorruptSourceError:
        file.check_readable()  # it knows better what is wrong
        raise


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns what pyarrow raises for a damaged file into CorruptSourceError."""
    try:
        yield
    except RemoteError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptSourceError(
            f"not a whole Parquet file: {error}", file=name, hint="it may have been cut short: download it again"
        ) from error


def check_schema(schema: pa.Schema, name: str, model: pa.Schema, model_name: str) -> None:
    """That a file has the columns of the first one, in whatever order, with whatever metadata.

    Raises:
        CorruptSourceError: a column is missing, is one too many, or has another type.
    """
    if schema.equals(model) or {f.name: f.type for f in schema} == {f.name: f.type for f in model}:
        return
    for field in model:
        index = schema.get_field_index(field.name)
        if index < 0:
            raise CorruptSourceError(f"the column is missing; {model_name} has it", file=name, column=field.name)
        if schema.field(index).type != field.type:
            raise CorruptSourceError(
                f"the column is {schema.field(index).type}, in {model_name} it is {field.type}",
                file=name,
                column=field.name,
            )
    extra = next(field.name for field in schema if model.get_field_index(field.name) < 0)
    raise CorruptSourceError(f"the column is not in {model_name}", file=name, column=extra)


def group_bytes(metadata: pq.FileMetaData, group: int) -> int:
    """Bytes of a row group in the file."""
    row_group = metadata.row_group(group)
    return sum(row_group.column(i).total_compressed_size for i in range(row_group.num_columns))


def decoded_row_bytes(parquet: pq.ParquetFile, group: int, columns: Sequence[str]) -> float:
    """Mean bytes of a row of a row group in memory, of the columns that are read. Of numbers it goes by how many there
    are: a constant column takes next to nothing in the file."""
    metadata = parquet.metadata.row_group(group)
    total = 0
    for i in range(metadata.num_columns):
        chunk = metadata.column(i)
        if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns):
            column = parquet.schema.column(i)
            width = _NARROW.get(column.converted_type) or _WIDTHS.get(column.physical_type) or column.length or 0
            total += max(chunk.num_values * width, 0 if width else chunk.total_uncompressed_size)
    return total / max(1, int(metadata.num_rows))


def read_batches(
    file: SourceFile, parquet: pq.ParquetFile, groups: range, columns: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Row groups in batches of so many rows.

    Raises:
        CorruptSourceError: they cannot be read.
    """
    metadata = parquet.metadata
    options: dict[str, Any] = {}
    if file.filesystem is not None and sum(group_bytes(metadata, group) for group in groups) <= _FETCH_BYTES:
        options["pre_buffer"] = True
    if _HAS_LIST_TYPE and any(_has_long_column(metadata, group) for group in groups):
        options["list_type"] = pa.LargeListType
    with reading(file.name):
        if options:
            source = file.path if file.filesystem is None else file.open()
            options = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES, **options}
            parquet = pq.ParquetFile(source, metadata=metadata, **options)
        yield from parquet.iter_batches(
            batch_size=batch_rows, row_groups=list(groups), columns=list(columns), use_threads=pa.cpu_count() > 1
        )


def _has_long_column(metadata: pq.FileMetaData, group: int) -> bool:
    row_group = metadata.row_group(group)
    return any(row_group.column(i).num_values > _MAX_ELEMENTS for i in range(row_group.num_columns))


def runs(metadata: pq.FileMetaData, first: int, stop: int | None) -> Iterator[tuple[int, range]]:
    """Row groups that are read at once: the first one's first row, and their numbers. Together they have all rows from
    `first` on, up to `stop`, and those before in the same row group."""
    start, row, begin, size = 0, 0, 0, 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if row + rows <= first:
            start, begin = group + 1, row + rows
        elif stop is not None and row >= stop:
            if start < group:
                yield begin, range(start, group)
            return
        else:
            size += group_bytes(metadata, group)
            if size >= _FETCH_BYTES:
                yield begin, range(start, group + 1)
                start, begin, size = group + 1, row + rows, 0
        row += rows
    if start < metadata.num_row_groups:
        yield begin, range(start, metadata.num_row_groups)
