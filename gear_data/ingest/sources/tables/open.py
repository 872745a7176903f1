"""Opening of the tables at a location."""

from __future__ import annotations

from gear_data.errors import UnknownFormatError
from gear_data.ingest.location import Location
from gear_data.ingest.sources.tables.dataset_stream import DatasetTables
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.parquet import PARQUET
from gear_data.ingest.sources.tables.stream import TableStream


def open_tables(location: Location) -> TableStream | None:
    """Opens the tables at a location.

    Returns None if it holds neither Parquet files nor a `datasets` object.
    """
    if location.dataset is not None:
        return DatasetTables(location)
    files = location.with_suffix(".parquet")
    return FileTables(files, PARQUET) if files else None


def require_tables(location: Location) -> TableStream:
    """Opens the tables at a location, or raises UnknownFormatError."""
    tables = open_tables(location)
    if tables is None:
        raise UnknownFormatError("holds no Parquet file", file=location.name, hint="leave --format out")
    return tables
