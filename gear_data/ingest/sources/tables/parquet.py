"""One Parquet file: opened, compared with others, read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError, RemoteError
from gear_data.ingest.location import SourceFile, separate_datasets_hint

#: Bytes of a column read at a time. Without such a buffer a whole column chunk is, which of a file of one row group is
#: the whole column.
_BUFFER_BYTES = 1 << 20
#: Stored bytes of row groups that are fetched at once where a file is far away, and small reads cost a round trip each.
_FETCH_BYTES = 64 << 20
#: With lists of 32-bit offsets an episode of 2 GiB of pixels could not be read. They come with pyarrow 21.
_LONG_LISTS: dict[str, Any] = {"list_type": pa.LargeListType} if int(pa.__version__.split(".")[0]) >= 21 else {}


#: Most rows decoded at a time.
_MAX_ROWS = 1 << 16


@dataclass(frozen=True)
class RowGroups:
    """What a footer says of its row groups: rows of each, and about how many bytes of the file, encoded and as stored.

    This is all that is asked of a footer of a stranger. pyarrow (tried with 26.0) ends the process where the metadata
    of a column (`row_group(i).column(j)`), or its statistics, are damaged, since C++ exceptions go through Cython.
    """

    rows: tuple[int, ...]
    encoded: tuple[int, ...]
    stored: tuple[int, ...]


def open_parquet(file: SourceFile) -> pq.ParquetFile:
    """Raises CorruptSourceError: empty, cut short, a Git-LFS pointer, not Parquet."""
    try:
        with reading(file.name):
            # With its own buffering on, pyarrow would hold all row groups that it is asked for.
            source = file.path if file.filesystem is None else file.open()
            return pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES, **_LONG_LISTS)
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


def check_schema(schema: pa.Schema, name: str, model: pa.Schema, files: Sequence[SourceFile]) -> None:
    """That a file has the columns of the first one, in whatever order, with whatever metadata.

    Args:
        schema, name: of the file.
        model: the schema of the first one.
        files: all of the source.

    Raises:
        CorruptSourceError: a column is missing, is one too many, is there twice, or has another type.
    """
    names = [field.name for field in schema]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CorruptSourceError("two columns have this name", file=name, column=twice)
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
    """Raises CorruptSourceError: the row groups do not have the rows that the file claims."""
    with reading(file.name):
        metadata = parquet.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = tuple(int(group.num_rows) for group in groups)
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        raise CorruptSourceError(
            f"not a whole Parquet file: it claims {metadata.num_rows} rows, and row groups of {rows[:8]}",
            file=file.name,
            hint="it may have been cut short: download it again",
        )
    encoded = tuple(max(0, int(group.total_byte_size)) for group in groups)
    share = file.size / max(1, sum(encoded))
    return RowGroups(rows, encoded, tuple(int(share * size) for size in encoded))


class BatchSizer:
    """How many rows to decode at a time for about so many bytes in memory: it begins low and goes by what was read.

    The mean of a row group tells little where long episodes stand together, and constants take no bytes in a file.
    """

    def __init__(self, batch_bytes: int) -> None:
        self._bytes = batch_bytes
        self.rows = 1

    def expect(self, row_bytes: float) -> None:
        """Rows of so many bytes are ahead."""
        self.rows = max(1, min(self.rows, int(self._bytes / max(1.0, row_bytes))))

    def seen(self, batch: pa.RecordBatch) -> None:
        more = min(_MAX_ROWS, 2 * max(self.rows, len(batch)))
        self.rows = max(1, min(more, int(self._bytes * len(batch) / max(1, batch.nbytes))))


def read_batches(
    file: SourceFile, parquet: pq.ParquetFile, groups: range, columns: Sequence[str], pace: BatchSizer
) -> Iterator[pa.RecordBatch]:
    """Row groups in batches.

    Raises:
        CorruptSourceError: they cannot be read.
    """
    found = row_groups(parquet, file)
    # Where images are not among the columns this is more than is read; batches are no smaller than need be then.
    expected = max((found.encoded[group] / max(1, found.rows[group]) for group in groups), default=0.0)
    with reading(file.name):
        if file.filesystem is not None and sum(found.stored[group] for group in groups) <= _FETCH_BYTES:
            metadata, buffered = parquet.metadata, {"pre_buffer": True, "buffer_size": _BUFFER_BYTES}
            parquet = pq.ParquetFile(file.open(), metadata=metadata, **buffered, **_LONG_LISTS)
        pace.expect(expected)
        batches = parquet.iter_batches(
            batch_size=pace.rows, row_groups=list(groups), columns=list(columns), use_threads=pa.cpu_count() > 1
        )
        for batch in batches:
            pace.seen(batch)
            pace.expect(expected)
            parquet.reader.set_batch_size(pace.rows)
            yield batch


def runs(found: RowGroups, first: int, stop: int | None) -> Iterator[tuple[int, range]]:
    """Row groups that are read at once: the first one's first row, and their numbers. Together they have all rows from
    `first` on, up to `stop`, and those before in the same row group."""
    start, row, begin, size = 0, 0, 0, 0
    for group, (rows, stored) in enumerate(zip(found.rows, found.stored, strict=True)):
        if row + rows <= first:
            start, begin = group + 1, row + rows
        elif stop is not None and row >= stop:
            if start < group:
                yield begin, range(start, group)
            return
        else:
            size += stored
            if size >= _FETCH_BYTES:
                yield begin, range(start, group + 1)
                start, begin, size = group + 1, row + rows, 0
        row += rows
    if start < len(found.rows):
        yield begin, range(start, len(found.rows))
