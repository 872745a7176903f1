"""One Parquet file: opening, schema check, and reading in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError, RemoteError
from gear_data.ingest.location import SourceFile, separate_datasets_hint

#: Bytes of a column that are read at once. Without this buffer pyarrow reads a whole column chunk, which in a file of
#: one row group is the whole column.
_BUFFER_BYTES = 1 << 20
#: Stored bytes of row groups that are fetched at once from a remote file, where each small read costs a round trip.
_FETCH_BYTES = 64 << 20
#: Lists with 64-bit offsets, for episodes of more than 2 GiB of pixels. pyarrow has the option from version 21 on.
_LONG_LISTS: dict[str, Any] = {"list_type": pa.LargeListType} if int(pa.__version__.split(".")[0]) >= 21 else {}
#: Upper bound on the rows that are decoded at once.
_MAX_ROWS = 1 << 16


@dataclass(frozen=True)
class RowGroups:
    """The row groups of a file, from its footer.

    Nothing else is read from a footer. If the metadata of a column (`row_group(i).column(j)`) or its statistics are
    damaged, pyarrow (tried with 26.0) ends the process, because C++ exceptions pass through Cython.

    Attributes:
        rows: number of rows of each row group.
        encoded: uncompressed bytes of each row group.
        stored: bytes of each row group in the file, estimated from `encoded`.
    """

    rows: tuple[int, ...]
    encoded: tuple[int, ...]
    stored: tuple[int, ...]


def open_parquet(file: SourceFile) -> pq.ParquetFile:
    """Opens a file.

    Raises:
        CorruptSourceError: the file is empty, truncated, a Git-LFS pointer, or not Parquet.
    """
    try:
        with reading(file.name):
            # With `pre_buffer`, pyarrow would hold all requested row groups in memory.
            source = file.path if file.filesystem is None else file.open()
            return pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES, **_LONG_LISTS)
    except CorruptSourceError:
        file.check_readable()  # raises a clearer error for empty files and Git-LFS pointers
        raise


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Converts the errors of pyarrow to CorruptSourceError."""
    try:
        yield
    except RemoteError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptSourceError(
            f"cannot be read as Parquet: {error}", file=name, hint="the file may have been truncated: download it again"
        ) from error


def check_schema(schema: pa.Schema, name: str, model: pa.Schema, files: Sequence[SourceFile]) -> None:
    """Checks that a file has the columns of the first file.

    Their order and metadata may differ.

    Args:
        schema: the schema of the file.
        name: the name of the file.
        model: the schema of the first file.
        files: all files of the source.

    Raises:
        CorruptSourceError: a column is missing, additional or duplicated, or has another type.
    """
    names = [field.name for field in schema]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise CorruptSourceError(
            "two columns have this name", file=name, column=duplicate, hint="rename one of them in the source"
        )
    if schema.equals(model) or {f.name: f.type for f in schema} == {f.name: f.type for f in model}:
        return
    first = files[0].name
    hint = separate_datasets_hint([file.name for file in files], first, name)
    for field in model:
        index = schema.get_field_index(field.name)
        if index < 0:
            raise CorruptSourceError(f"the column is missing; {first} has it", file=name, column=field.name, hint=hint)
        if schema.field(index).type != field.type:
            raise CorruptSourceError(
                f"the column is {schema.field(index).type}, in {first} it is {field.type}",
                file=name,
                column=field.name,
                hint=hint,
            )
    extra = next(field.name for field in schema if model.get_field_index(field.name) < 0)
    raise CorruptSourceError(f"the column is not in {first}", file=name, column=extra, hint=hint)


def row_groups(parquet: pq.ParquetFile, file: SourceFile) -> RowGroups:
    """Returns the row groups of a file.

    Raises:
        CorruptSourceError: the rows of the row groups do not add up to the rows of the file.
    """
    with reading(file.name):
        metadata = parquet.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = tuple(int(group.num_rows) for group in groups)
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        raise CorruptSourceError(
            f"declares {metadata.num_rows} rows, but its row groups have {rows[:8]}",
            file=file.name,
            hint="the file may have been truncated: download it again",
        )
    encoded = tuple(max(0, int(group.total_byte_size)) for group in groups)
    share = file.size / max(1, sum(encoded))
    return RowGroups(rows, encoded, tuple(int(share * size) for size in encoded))


class BatchSizer:
    """Chooses how many rows to decode for a batch of about `batch_bytes`.

    It starts with one row and follows the sizes of the batches read. The mean row size of a row group does not help:
    long episodes may be consecutive, and a constant column takes almost no bytes in the file.
    """

    def __init__(self, batch_bytes: int) -> None:
        self._bytes = batch_bytes
        self.rows = 1

    def limit(self, row_bytes: float) -> None:
        """Lowers the number of rows if the next rows take `row_bytes` each."""
        self.rows = max(1, min(self.rows, int(self._bytes / max(1.0, row_bytes))))

    def update(self, batch: pa.RecordBatch) -> None:
        """Adapts the number of rows to a batch that was read; at most doubles it."""
        upper_bound = min(_MAX_ROWS, 2 * max(self.rows, len(batch)))
        self.rows = max(1, min(upper_bound, int(self._bytes * len(batch) / max(1, batch.nbytes))))


def read_batches(
    file: SourceFile, parquet: pq.ParquetFile, groups: range, columns: Sequence[str], sizer: BatchSizer
) -> Iterator[pa.RecordBatch]:
    """Yields the columns of some row groups in batches, whose size `sizer` chooses.

    Raises:
        CorruptSourceError: the row groups cannot be read.
    """
    found = row_groups(parquet, file)
    # An upper bound: it also counts columns that are not read, such as images.
    row_bytes = max((found.encoded[group] / max(1, found.rows[group]) for group in groups), default=0.0)
    with reading(file.name):
        if file.filesystem is not None and sum(found.stored[group] for group in groups) <= _FETCH_BYTES:
            metadata, buffered = parquet.metadata, {"pre_buffer": True, "buffer_size": _BUFFER_BYTES}
            parquet = pq.ParquetFile(file.open(), metadata=metadata, **buffered, **_LONG_LISTS)
        sizer.limit(row_bytes)
        batches = parquet.iter_batches(
            batch_size=sizer.rows, row_groups=list(groups), columns=list(columns), use_threads=pa.cpu_count() > 1
        )
        for batch in batches:
            sizer.update(batch)
            sizer.limit(row_bytes)
            parquet.reader.set_batch_size(sizer.rows)
            yield batch


def row_group_runs(row_groups: RowGroups, first: int, stop: int | None) -> Iterator[tuple[int, range]]:
    """Yields runs of row groups that are read at once.

    An item is the first row of the run, and the indices of its row groups. Together the runs hold the rows
    [first, stop), and the rows before `first` in the same row group. A `stop` of None is the end of the file.
    """
    run_start, row, run_row, size = 0, 0, 0, 0
    for group, (rows, stored) in enumerate(zip(row_groups.rows, row_groups.stored, strict=True)):
        if row + rows <= first:
            run_start, run_row = group + 1, row + rows
        elif stop is not None and row >= stop:
            if run_start < group:
                yield run_row, range(run_start, group)
            return
        else:
            size += stored
            if size >= _FETCH_BYTES:
                yield run_row, range(run_start, group + 1)
                run_start, run_row, size = group + 1, row + rows, 0
        row += rows
    if run_start < len(row_groups.rows):
        yield run_row, range(run_start, len(row_groups.rows))
