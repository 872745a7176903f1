"""A stream of Arrow tables from Parquet files or a `datasets` object: what row-shaped formats read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptSourceError, UnknownFormatError
from gear_data.ingest.arrow_plain import PlainColumn, plain_columns, plain_table
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.parquet_file import (
    check_schema,
    decoded_row_bytes,
    open_parquet,
    reading,
    row_groups,
    scan,
)
from gear_data.ingest.parquet_units import cuts, proven
from gear_data.ingest.source import Unit
from gear_data.storage.block import BEGIN, Position

#: Bytes in memory of a table handed out at once, as far as they can be foreseen.
_BATCH_BYTES = 16 << 20
#: Rows that say how large others will be.
_HEAD_ROWS = 64
_ONE_TYPE = "give the dataset features (datasets.Features), or bring the column to one type"


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of one file: `count` of them from `position` on."""

    position: Position
    name: str
    count: int


@dataclass(frozen=True)
class TablePart:
    """Consecutive rows of a source, read at once: of one file, or of several small ones."""

    stretches: tuple[Stretch, ...]
    table: pa.Table

    @property
    def position(self) -> Position:
        """Of the first row."""
        return self.stretches[0].position

    def place(self, row: int) -> tuple[str, int]:
        """File and source row of a row of the table."""
        for stretch in self.stretches[:-1]:
            if row < stretch.count:
                return stretch.name, stretch.position.row + row
            row -= stretch.count
        return self.stretches[-1].name, self.stretches[-1].position.row + row

    def rows(self) -> npt.NDArray[np.int64]:
        """int64 [n]: source rows, as each file counts them."""
        return np.concatenate(
            [np.arange(s.position.row, s.position.row + s.count, dtype=np.int64) for s in self.stretches]
        )

    def names(self) -> list[str]:
        """The file of each row."""
        return [name for s in self.stretches for name in [s.name] * s.count]


class TableStream(Protocol):
    """Tables in source order, their columns plain (`arrow_plain`)."""

    num_rows: int | None

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read."""

    def select(self, columns: list[str]) -> None:
        """Reads only these columns from now on."""

    def head(self, rows: int) -> pa.Table | None:
        """The first rows, at most so many; None if there are none."""

    def units(self, ids: str | None) -> Sequence[Unit]:
        """Where reading may begin, see `EpisodeSource.units`. Where a row is a step, `ids` is the column that tells
        episodes apart; without it any row may be a unit's first."""

    def bounds(self, ids: str, position: Position) -> tuple[Any, Any]:
        """Of the unit from `position` on: ids of its episodes are not less than the first and less than the second
        value; None where there is no such bound."""

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        """All rows from `start` on, which need not be where a part began, up to `stop`."""
