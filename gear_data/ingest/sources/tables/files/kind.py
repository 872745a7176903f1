"""Kinds of files that hold tables, and the interface to an opened file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from gear_data.errors import CorruptSourceError, RemoteError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.flatten import FlattenedColumn

#: The number of rows of a row group, if only reading the group can tell. More than any file has.
UNKNOWN_ROWS = 1 << 62
#: Stored bytes of row groups that are fetched at once from a remote file, where each small read costs a round trip.
FETCH_BYTES = 64 << 20
#: Upper bound on the rows that are decoded at once.
_MAX_ROWS = 1 << 16


@dataclass(frozen=True)
class RowGroups:
    """The row groups of a file: the parts that can be read separately.

    Attributes:
        rows: number of rows of each row group, or `UNKNOWN_ROWS` for the only row group of a file.
        encoded: uncompressed bytes of each row group.
        stored: bytes of each row group in the file.
    """

    rows: tuple[int, ...]
    encoded: tuple[int, ...]
    stored: tuple[int, ...]

    @property
    def total_rows(self) -> int | None:
        """Number of rows of the file; None if unknown."""
        return None if UNKNOWN_ROWS in self.rows else sum(self.rows)


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


def batch_slices(batch: pa.RecordBatch, sizer: BatchSizer) -> Iterator[pa.RecordBatch]:
    """Yields a batch in checked slices, whose size `sizer` chooses."""
    row = 0
    while row < len(batch):
        part = batch.slice(row, sizer.rows)
        part.validate(full=True)
        sizer.update(part)
        row += len(part)
        yield part


class TableFile(Protocol):
    """An opened file of tables."""

    #: Of all columns, as the file stores them.
    schema: pa.Schema

    def row_groups(self) -> RowGroups:
        """Returns the row groups of the file."""

    def batches(self, groups: range, columns: Sequence[FlattenedColumn], sizer: BatchSizer) -> Iterator[pa.RecordBatch]:
        """Yields at least the stored parts of the columns in some row groups.

        `sizer` chooses the size of the batches.

        Raises:
            CorruptSourceError: the row groups cannot be read.
        """


@dataclass(frozen=True)
class FileKind:
    """A kind of files that hold tables.

    Attributes:
        name: the name of the kind, for messages.
        open: opens a file. The second argument is the schema of the source's first file, or None for that file.
        splittable: whether a file's row groups are found and read without reading the rows before.
        by_pandas: whether pandas reads the files.
    """

    name: str
    open: Callable[[SourceFile, pa.Schema | None], AbstractContextManager[TableFile]]
    splittable: bool = True
    by_pandas: bool = False

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Converts the errors of pyarrow to CorruptSourceError; `name` is the file's."""
        try:
            yield
        except RemoteError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise unreadable(self.name, name, error) from error


def unreadable(kind: str, name: str, error: Exception) -> CorruptSourceError:
    """Returns the error for a file that cannot be read as a kind."""
    return CorruptSourceError(
        f"cannot be read as {kind}: {error}", file=name, hint="the file may have been truncated: download it again"
    )
