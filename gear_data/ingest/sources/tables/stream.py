"""Streams of Arrow tables, which the row-shaped formats read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.read_units import ReadSpan
from gear_data.storage.episode_block import Position

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class FileRows:
    """Consecutive rows of one file: `count` rows from `position` on.

    `name` is the name of the file.
    """

    position: Position
    name: str
    count: int


@dataclass(frozen=True)
class TablePart:
    """Consecutive rows of a source that are read at once.

    Attributes:
        file_rows: the rows of each file, in order: one file, or several small files.
        table: the rows.
    """

    file_rows: tuple[FileRows, ...]
    table: pa.Table

    @property
    def position(self) -> Position:
        """Position of the first row."""
        return self.file_rows[0].position

    def place(self, row: int) -> tuple[str, int]:
        """Returns the file name and the source row of a row of the table."""
        for run in self.file_rows[:-1]:
            if row < run.count:
                return run.name, run.position.row + row
            row -= run.count
        return self.file_rows[-1].name, self.file_rows[-1].position.row + row

    def rows(self) -> npt.NDArray[np.int64]:
        """Returns int64 [n]: the source row of each row, counted per file."""
        return np.concatenate(
            [np.arange(run.position.row, run.position.row + run.count, dtype=np.int64) for run in self.file_rows]
        )

    def names(self) -> list[str]:
        """Returns the file name of each row."""
        return [name for run in self.file_rows for name in [run.name] * run.count]


class TableStream(Protocol):
    """Tables in source order, with the columns that `flatten_table` makes."""

    #: The files, in source order; none for tables in memory.
    files: tuple[SourceFile, ...]
    #: Of all columns, selected or not.
    schema: pa.Schema
    #: `schema`, before the user gave columns other types.
    uncast: pa.Schema
    #: Whether the files are known to be consecutive parts of one table.
    is_one_table: bool
    #: Whether pandas made the tables, for which a missing number is NaN.
    by_pandas: bool

    @property
    def num_rows(self) -> int | None:
        """Number of rows, possibly estimated; None if unknown."""

    def select(self, columns: list[str]) -> None:
        """Restricts all later reads to these columns."""

    def head(self, rows: int) -> pa.Table | None:
        """Returns at most the first `rows` rows; None if there are no rows."""

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        """Returns the positions at which reading may begin; the first is `BEGIN`.

        Args:
            ids: the column of episode ids, if a row is a step; None if a row is an episode.
        """

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        """Yields all rows from `start` up to `stop`.

        `start` need not be the first row of a part.
        """


def read_ahead(parts: Iterator[_Part]) -> Iterator[_Part]:
    """Yields the same parts; a thread reads and decodes the next part in the meantime."""
    with ThreadPoolExecutor(1, thread_name_prefix="gear-read") as reader:
        pending = reader.submit(next, parts, None)
        while (part := pending.result()) is not None:
            pending = reader.submit(next, parts, None)
            yield part
