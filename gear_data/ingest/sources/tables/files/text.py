"""CSV and JSON, which `datasets` reads in blocks of 10,000 rows and of 10 MB.

Compressed files are decompressed while they are read.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow as pa
from fsspec.compression import compr
from fsspec.utils import infer_compression

from gear_data.errors import MissingExtraError, UnknownFormatError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.files.json_array import array_tables, is_array
from gear_data.ingest.sources.tables.files.kind import FileKind
from gear_data.ingest.sources.tables.files.streamed import split_builder, streamed_kind

#: Bytes of a first line that are looked at.
_LINE = 1 << 20
#: Suffix -> the name of the compression, and the package that fsspec needs for it.
_PACKAGES = {".zst": ("zstd", "zstandard"), ".lz4": ("lz4", "lz4")}


@cache
def csv_kind(header: bool | None) -> FileKind:
    """Returns the kind of CSV files, whose first line has names or not; None refuses a first line of numbers."""
    return streamed_kind("CSV", partial(_csv_tables, header), by_pandas=True)


def _csv_tables(header: bool | None, file: SourceFile, model: pa.Schema | None) -> Iterator[pa.Table]:
    from datasets.packaged_modules.csv.csv import Csv

    _check_compression(file)
    separator = "\t" if ".tsv" in PurePosixPath(file.name).suffixes else ","
    if header is None:
        _refuse_numbers(file, separator)
    # By default pandas reads 0.30000000000000004 as 0.3: it keeps 17 digits, and counts zeros in front as digits.
    options: dict[str, Any] = {"sep": separator, "float_precision": "round_trip"}
    if header is False:
        options["header"] = None
    builder, split = split_builder(Csv, file, **options)
    for _, table in builder._generate_tables(**split):
        yield table


def _refuse_numbers(file: SourceFile, separator: str) -> None:
    """Refuses a file whose first line has numbers in place of names.

    `numpy.savetxt` writes such files. Raises UnknownFormatError.
    """
    if (stream := _decompressed(file)) is None:
        return
    with stream:
        line = stream.readline(_LINE).decode("utf-8-sig", "replace").strip()
    parts = [part.strip('"') for part in re.split(r"[\s,;]+", line) if part]
    others = [part.lower() for part in parts if not _is_number(part)]
    if len(others) == len(parts) or not {"true", "false"}.issuperset(others):
        return
    shown = line if len(line) <= 60 else line[:60] + "..."
    hint = "if it is data, give --no-header (header=False): the columns are '0', '1', ..., for --rename 0=NAME; if it "
    hint += "has the names of the columns, give --header (header=True)"
    if len(parts) > 1 and separator not in line:
        hint = f"separate the columns by {separator!r}, or read the file with pandas or Polars and convert the frame"
    raise UnknownFormatError(f"has no header: its first line is {shown!r}", file=file.name, hint=hint)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _json_tables(file: SourceFile, model: pa.Schema | None) -> Iterator[pa.Table]:
    from datasets import Features
    from datasets.packaged_modules.json.json import Json, JsonConfig

    _check_compression(file)
    if (stream := _decompressed(file)) is not None:
        with stream:
            if is_array(stream):
                stream.seek(0)
                yield from array_tables(stream)
                return
    options: dict[str, Any] = {} if model is None else {"features": Features.from_arrow_schema(model)}
    if "on_mixed_types" in JsonConfig.__dataclass_fields__:
        # A column of several types would become JSON text, and the numbers of all columns would lose digits.
        options["on_mixed_types"] = None
    builder, split = split_builder(Json, file, **options)
    for _, table in builder._generate_tables(**split):
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


JSON = streamed_kind("JSON", _json_tables)
