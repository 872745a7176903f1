"""WebDataset: tar files of samples, whose members share a key.

Example: `000000.json`, `000000.action.npy`.

A column has the name of its member without the sample's key and without the last suffix: `action`. The fields of a JSON
object are columns: `reward` of `000000.json`. A member without such a name has its suffix as the name: `jpg`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.files.streamed import split_builder, streamed_kind
from gear_data.ingest.sources.tables.to_numpy import is_file

#: Samples, and approximate bytes of members, of one table.
_BLOCK_ROWS, _BLOCK_BYTES = 1000, 4 << 20
#: Bytes of a block of a tar file.
_BLOCK = 512
_URL = "__url__"
_JSON = ("json", "jsn")
#: Members that only pickle can read.
_PICKLES = ("pth", "pt", "pickle", "pkl", "pyd")


def _tar_tables(file: SourceFile, model: pa.Schema | None) -> Iterator[pa.Table]:
    _check_end(file)
    builder, split = split_builder(_builder_class(), file)
    features = builder.info.features
    for name in features:
        if name.rpartition(".")[2].lower() in _PICKLES:
            raise UnsupportedColumnError(
                "pickles are never loaded",
                file=file.name,
                column=name,
                hint="write the samples without this member",
            )
    rows: list[Any] = []
    size = 0
    for number, (_, example) in enumerate(builder._generate_examples(**split)):
        row = features.encode_example(example)
        changed = next((name for name in features if _is_changed(example.get(name), row[name])), None)
        if changed is not None:
            raise CorruptSourceError(
                "holds numbers that the types of the first five samples cannot hold",
                file=file.name,
                column=changed,
                row=number,
                hint="write the numbers of the first five samples as floats, too: 0.0 in place of 0",
            )
        if (left_out := _left_out(example, row)) is not None:
            raise CorruptSourceError(
                "the first five samples lack it, and they decide which columns there are",
                file=file.name,
                column=left_out,
                row=number,
                hint="add it to the first five samples, or write this sample without it",
            )
        rows.append(row)
        size += sum(map(_size, example.values()))
        if len(rows) >= _BLOCK_ROWS or size >= _BLOCK_BYTES:
            yield _plain_names(pa.Table.from_pylist(rows, features.arrow_schema))
            rows, size = [], 0
    if rows:
        yield _plain_names(pa.Table.from_pylist(rows, features.arrow_schema))


def _is_changed(before: Any, after: Any) -> bool:
    """Returns whether a number is another after `datasets` encoded it: in a column of integers it cuts fractions."""
    if isinstance(after, dict):
        return isinstance(before, Mapping) and any(_is_changed(before.get(key), value) for key, value in after.items())
    if isinstance(after, list):
        return any(_is_changed(*pair) for pair in zip(before, after, strict=False))
    return isinstance(after, int) and isinstance(before, int | float | np.number) and bool(before != after)


def _left_out(before: Any, after: Any) -> str | None:
    """Returns the name of a member, or of a field of JSON, that `datasets` left out; None without."""
    if isinstance(before, Mapping) and isinstance(after, dict):
        for name, value in before.items():
            inner = _left_out(value, after[name]) if name in after else ""
            if inner is not None:
                return f"{name}.{inner}".rstrip(".")
    if isinstance(before, list) and isinstance(after, list):
        return next(filter(None, map(_left_out, before, after)), None)
    return None


def _check_end(file: SourceFile) -> None:
    """Checks that a tar file is complete: it ends with zeros.

    Otherwise a file that ends between two members would lose the others in silence.
    """
    with file.open() as stream:
        head = stream.read(_BLOCK)
        stream.seek(max(0, file.size - 2 * _BLOCK))
        tail = stream.read()
    if head[257:262] == b"ustar" and tail.strip(b"\0"):
        raise CorruptSourceError("its end is missing", file=file.name, hint="download it again")


@lru_cache(maxsize=1)
def _builder_class() -> type[Any]:
    """Returns the builder of WebDataset that leaves pickles as bytes."""
    from datasets.packaged_modules.webdataset.webdataset import WebDataset

    class Samples(WebDataset):  # type: ignore[misc]
        DECODERS = {name: decode for name, decode in WebDataset.DECODERS.items() if name not in _PICKLES}  # noqa: RUF012

    return Samples


def _size(value: Any) -> int:
    """Returns the approximate size of a member in memory, in bytes."""
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        value = value["bytes"]
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, bytes | str) else 64)


def _plain_names(table: pa.Table) -> pa.Table:
    """Returns the columns under short names.

    The path of the tar file and the paths of members are left out.
    """
    names: dict[str, pa.ChunkedArray] = {}
    for field in table.schema:
        if field.name == _URL:
            continue
        base, _, suffix = field.name.rpartition(".")
        column = table.column(field.name)
        if suffix in _JSON and pa.types.is_struct(field.type):
            inner = {f"{base}.{name.name}".lstrip("."): pc.struct_field(column, name.name) for name in field.type}
        else:
            inner = {base or suffix: _without_paths(column)}
        for name, values in inner.items():
            names[field.name if name in names else name] = values
    return pa.table(names)


def _without_paths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns images and other files without their paths, which repeat the key."""
    if not is_file(column.type):
        return column
    content = pc.struct_field(column, "bytes").combine_chunks()
    paths = pa.nulls(len(content), column.type.field("path").type)
    return pa.chunked_array([pa.StructArray.from_arrays([content, paths], fields=list(column.type))])


WEBDATASET = streamed_kind("tar", _tar_tables, "if it is not a WebDataset, unpack it")
