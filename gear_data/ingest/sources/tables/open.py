"""Opening of the tables at a location.

Of a folder that `Dataset.save_to_disk` of HuggingFace `datasets` wrote, `state.json` lists the files, in order. Other
Arrow files in it are caches of `datasets`.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import PurePosixPath

import pyarrow as pa

from gear_data.errors import CorruptSourceError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile, listed
from gear_data.ingest.pipeline.names import usual_name
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.ingest.sources.tables.cast_tables import cast_tables, given_types
from gear_data.ingest.sources.tables.dataset_stream import DatasetTables, MemoryTable
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.arrow import ARROW
from gear_data.ingest.sources.tables.files.kind import FileKind
from gear_data.ingest.sources.tables.files.parquet import PARQUET
from gear_data.ingest.sources.tables.files.text import JSON, csv_kind
from gear_data.ingest.sources.tables.files.webdataset import WEBDATASET
from gear_data.ingest.sources.tables.lance import open_lance
from gear_data.ingest.sources.tables.stream import TableStream
from gear_data.ingest.sources.tables.to_numpy import leaf_type
from gear_data.ingest.table_files import table_kinds
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.writing.progress_files import PROGRESS

#: Suffixes of the data files that tables may be, of those that `DATA_SUFFIXES` lists.
TABLE_SUFFIXES = (".parquet", ".arrow", ".arrows", ".feather", ".ipc", ".lance")
#: Files beside the data of a Lance table.
BESIDE_TABLES = r"(.*/)?_versions/.*"
_KINDS: dict[str, FileKind] = {kind.name: kind for kind in (PARQUET, ARROW, JSON, WEBDATASET)}
#: What files without types say in digits may be a whole number by chance.
_UNTYPED = ("CSV", "JSON")


def open_tables(location: Location, *, requested: bool = False) -> TableStream | None:
    """Opens the tables at a location.

    Args:
        location: the source.
        requested: whether the user says that the source is a table. Then text files count even if there are other
            files, which they may describe.

    Returns:
        The tables; None if there are none.

    Raises:
        UnknownFormatError: the location holds several datasets.
        CorruptSourceError: a file cannot be read.
    """
    tables = _located_tables(location, requested)
    return None if tables is None else cast_tables(tables, location)


def _located_tables(location: Location, requested: bool) -> TableStream | None:
    if location.dataset is not None:
        return DatasetTables(location)
    if location.table is not None:
        return MemoryTable(location.table, location.name)
    if is_dataset(location) or is_unfinished_conversion(location):
        return None
    if files := saved_files(location):
        return FileTables(files, ARROW, is_one_table=True)
    if (lance := open_lance(location)) is not None:
        return lance
    kinds = table_kinds(location.files, requested=requested)
    if len(kinds) > 1:
        names = [f"{len(files)} {name} ({files[0].name})" for name, files in kinds.items()]
        raise UnknownFormatError(
            f"holds tables of several kinds, and only one can be the data: {', '.join(names)}",
            hint="give one file, or move the files that are not data to another folder",
        )
    for name, files in kinds.items():
        kind = csv_kind(location.tables.header) if name == "CSV" else _KINDS[name]
        return FileTables(files, kind, types=partial(_text_types, location, kind.name in _UNTYPED))
    return None


def _text_types(location: Location, untyped: bool, schema: pa.Schema) -> dict[str, pa.DataType]:
    """Returns the types of columns of text files: those that the user gives, and float64 for whole rewards.

    Rewards of the first rows may be whole numbers, such as 0 and 1, and later ones have fractions.
    """
    types = given_types(schema, location)
    for field in schema if untyped else ():
        if usual_name(field.name, location.rename) == "rewards" and pa.types.is_integer(leaf_type(field.type)):
            types.setdefault(field.name, pa.float64())
    return types


def require_tables(location: Location) -> TableStream:
    """Opens the tables that the user requests, or raises UnknownFormatError."""
    tables = open_tables(location, requested=True)
    if tables is None:
        raise UnknownFormatError("holds no table", hint="leave --format out")
    return tables


def is_dataset(location: Location) -> bool:
    """Returns whether a location is a dataset that `convert` wrote."""
    return location.file(MANIFEST_NAME) is not None and location.file("episodes.arrow") is not None


def is_unfinished_conversion(location: Location) -> bool:
    """Returns whether a location is a folder to which `convert` is writing."""
    return os.path.isdir(os.path.join(location.name, PROGRESS))


_STATE, _INFO = "state.json", "dataset_info.json"


def saved_files(location: Location) -> tuple[SourceFile, ...]:
    """Returns the Arrow files of the saved dataset at a location, in order.

    Returns none if there is no saved dataset.

    Raises:
        UnknownFormatError: there are several saved datasets.
        CorruptSourceError: `state.json` is damaged, a file that it lists is missing, or the dataset has an index.
    """
    folders = [
        folder
        for file in location.files
        if file.name.endswith(_STATE)
        and (folder := PurePosixPath(file.name).parent) / _STATE == PurePosixPath(file.name)
        and location.file(str(folder / _INFO)) is not None
    ]
    if not folders:
        return ()
    if len(folders) > 1:
        problem = f"holds {len(folders)} datasets of save_to_disk: {listed(folders)}"
        raise UnknownFormatError(problem, hint="convert one at a time")
    state = location.file(str(folders[0] / _STATE))
    return () if state is None else _listed_files(location, state, folders[0])


def _listed_files(location: Location, state: SourceFile, folder: PurePosixPath) -> tuple[SourceFile, ...]:
    facts = read_json_object(state)
    if facts.get("_indices_data_files"):
        raise CorruptSourceError(
            "the dataset has an index of rows, as old versions of datasets wrote",
            file=state.name,
            column="_indices_data_files",
            hint="load it with such a version, call flatten_indices(), and save it again",
        )
    entries = facts.get("_data_files")
    listed = entries if isinstance(entries, list) else [None]
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed]
    if not all(isinstance(name, str) for name in names):
        raise CorruptSourceError(
            f"lists no files, but {json.dumps(entries)[:200]}",
            file=state.name,
            column="_data_files",
            hint="download it again",
        )
    files = [location.file(str(folder / str(name))) for name in names]
    found = tuple(file for file in files if file is not None)
    if len(found) < len(files):
        missing = names[files.index(None)]
        raise CorruptSourceError(
            f"lists the file '{missing}', which does not exist", file=state.name, hint="download the folder again"
        )
    return found
