"""CSV and JSON, read by HuggingFace `datasets` as its `load_dataset` reads them.

So `load_dataset` gives the same types: the first block of the first file decides. It has 10,000 rows of CSV or
10 MB of JSON. Later blocks are cast to these types. Compressed files are decompressed while they are read.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow as pa
from fsspec.compression import compr
from fsspec.utils import infer_compression

from gear_data.errors import CorruptSourceError, GearError, MissingExtraError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.files.json_array import array_tables, is_array
from gear_data.ingest.sources.tables.files.kind import UNKNOWN_ROWS, BatchSizer, FileKind, RowGroups, batch_slices
from gear_data.ingest.sources.tables.flatten import FlattenedColumn

_CSV, _JSON = "CSV", "JSON"
#: Suffix -> the name of the compression, and the package that fsspec needs for it.
_PACKAGES = {".zst": ("zstd", "zstandard"), ".lz4": ("lz4", "lz4")}


class TextTable:
    """An opened file of CSV or JSON. It is one row group, read from its beginning.

    Args:
        kind: `CSV` or `JSON`.
        file: the file.
        model: the schema of the source's first file, to which the rows are cast; None for that file.

    Raises:
        CorruptSourceError: the file is empty, a Git-LFS pointer, or not of the kind.
        MissingExtraError: the package for the file's compression is not installed.
    """

    def __init__(self, kind: str, file: SourceFile, model: pa.Schema | None) -> None:
        file.check_readable()
        _check_compression(file)
        self._kind = kind
        self._file = file
        self.schema = _first_schema(kind, file) if model is None else model

    def __enter__(self) -> TextTable:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: a file is open only while it is read."""

    def row_groups(self) -> RowGroups:
        return RowGroups((UNKNOWN_ROWS,), (self._file.size,), (self._file.size,))

    def batches(self, groups: range, columns: Sequence[FlattenedColumn], sizer: BatchSizer) -> Iterator[pa.RecordBatch]:
        from datasets.table import table_cast

        names, row = list(dict.fromkeys(column.path[0] for column in columns)), 0
        tables = _tables(self._kind, self._file, self.schema)
        while True:
            with _typed_errors(self._kind, self._file.name, row):
                table = next(tables, None)
                if table is None:
                    return
                table = table_cast(table, self.schema)
            for batch in table.select(names).to_batches():
                yield from batch_slices(batch, sizer)
            row += len(table)


@lru_cache(maxsize=16)
def _first_schema(kind: str, file: SourceFile) -> pa.Schema:
    """Returns the types of the first block of a file."""
    with _typed_errors(kind, file.name, 0):
        table = next(_tables(kind, file, None), None)
    if table is None:
        raise CorruptSourceError("holds no row", file=file.name, hint="leave the file out")
    return table.schema


def _tables(kind: str, file: SourceFile, model: pa.Schema | None) -> Iterator[pa.Table]:
    """Yields the blocks of a file as `load_dataset` reads them, before it casts them."""
    if kind == _JSON and (stream := _decompressed(file)) is not None:
        with stream:
            if is_array(stream):
                stream.seek(0)
                yield from array_tables(stream)
                return
    from datasets import DownloadConfig, Features
    from datasets.data_files import DataFilesDict, DataFilesList
    from datasets.download.streaming_download_manager import StreamingDownloadManager
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.json.json import Json
    from datasets.streaming import extend_dataset_builder_for_streaming

    url = file.path if file.filesystem is None else file.filesystem.unstrip_protocol(file.path)
    options: dict[str, Any] = {"data_files": DataFilesDict({"train": DataFilesList([url], [("", "")])})}
    if kind == _JSON and model is not None:
        options["features"] = Features.from_arrow_schema(model)
    if ".tsv" in file.name.lower():
        options["sep"] = "\t"
    with tempfile.TemporaryDirectory() as cache:  # a builder makes a lock there
        builder = (Csv if kind == _CSV else Json)(cache_dir=cache, **options)
    extend_dataset_builder_for_streaming(builder)
    manager = StreamingDownloadManager(base_path="", download_config=DownloadConfig(), dataset_name="")
    (split,) = builder._split_generators(manager)
    for _, table in builder._generate_tables(**split.gen_kwargs):
        yield table


def _decompressed(file: SourceFile) -> IO[bytes] | None:
    """Opens a file, which may be compressed.

    Returns None for an archive of several files.
    """
    compression = infer_compression(file.name)
    if compression is None:
        return file.open()
    if compression == "zip":
        with zipfile.ZipFile(file.open()) as archive:
            if len(archive.namelist()) > 1:
                return None
    stream: IO[bytes] = compr[compression](file.open(), mode="rb")
    return stream


def _check_compression(file: SourceFile) -> None:
    """Checks that the package for a file's compression is installed.

    Raises MissingExtraError otherwise.
    """
    compression, package = _PACKAGES.get(PurePosixPath(file.name).suffix.lower(), ("", ""))
    if compression and compression not in compr:
        raise MissingExtraError(
            f"is compressed by {compression}, which needs the package {package}",
            file=file.name,
            hint=f"install it: pip install {package}",
        )


@contextmanager
def _typed_errors(kind: str, name: str, row: int) -> Iterator[None]:
    """Converts errors to CorruptSourceError.

    `row` is the first row of the block that is read.
    """
    try:
        yield
    except GearError:
        raise
    except Exception as error:  # datasets, pandas, pyarrow and the decompressors raise many kinds of errors
        text = f"{type(error).__name__}: {error}"
        raise CorruptSourceError(
            f"from row {row} on, datasets cannot read it as {kind}: {text[:1000]}",
            file=name,
            row=row,
            hint="the first rows decide the types: check the rows, or load the file with datasets and its "
            "features=..., and pass the datasets.Dataset to gear_data.convert",
        ) from error


CSV = FileKind(_CSV, partial(TextTable, _CSV), splittable=False)
JSON = FileKind(_JSON, partial(TextTable, _JSON), splittable=False)
