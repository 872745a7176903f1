"""Hashes of objects in memory: the same for equal contents, in every process."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from gear_data.ingest.sources.memory.transitions import as_table
from gear_data.storage.arrow_files import WRITE_OPTIONS

#: Deeper values are not hashed. They may contain themselves.
_MAX_DEPTH = 32


class _UnknownContentsError(Exception):
    """Raised for an object whose contents are not known before it is read."""


def repeatable(source: Any) -> Any:
    """Returns a source that can be read twice: a stream of Arrow's as a table, any other object as it is."""
    module, name = type(source).__module__.partition(".")[0], type(source).__name__
    if module == "polars" and name == "LazyFrame":
        return source.collect()
    is_stream = hasattr(source, "__arrow_c_stream__") and module not in ("pandas", "polars")
    return as_table(source) if is_stream and not isinstance(source, pa.Table) else source


def contents_hash(source: Any) -> str | None:
    """Returns xxh3-128 of the contents of an object in memory.

    Returns None for iterators, functions, streamed datasets, and objects of unknown types: only reading them says what
    they hold.
    """
    digest = xxhash.xxh3_128()
    try:
        _add(digest, source, 0)
    except _UnknownContentsError:
        return None
    return str(digest.hexdigest())


def _add(digest: Any, value: Any, depth: int) -> None:
    """Adds a value to a hash. Types and lengths are added, too, so that no two values have the same bytes."""
    if depth > _MAX_DEPTH:
        raise _UnknownContentsError
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str):
        _text(digest, f"{kind.__name__} {value!r}")
    elif kind in (bytes, bytearray):
        _text(digest, f"bytes {len(value)}")
        digest.update(value)
    elif _is_array(value):
        _add_array(digest, _as_array(value), depth)
    elif isinstance(value, list | tuple | deque):
        _text(digest, f"{kind.__name__} {getattr(value, '_fields', '')} {len(value)}")
        for item in value:
            _add(digest, item, depth + 1)
    elif isinstance(value, Mapping):
        _text(digest, f"mapping {len(value)}")
        for key, item in value.items():
            _add(digest, key, depth + 1)
            _add(digest, item, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _text(digest, f"{kind.__module__}.{kind.__qualname__}")
        for each in dataclasses.fields(value):
            _text(digest, each.name)
            _add(digest, getattr(value, each.name), depth + 1)
    elif _is_dataset(value):
        _text(digest, f"dataset {value._fingerprint} {value.split}")
    elif depth == 0 and (table := as_table(value)) is not None:
        _add_table(digest, table)
    else:
        raise _UnknownContentsError


def _text(digest: Any, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    digest.update(f"{len(data)} ".encode() + data)


def _is_array(value: Any) -> bool:
    """Returns whether a value is an array, a number of NumPy, or a tensor. The conversion reads it as an array, too."""
    return hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")


def _as_array(value: Any) -> Any:
    try:
        if not np.ma.is_masked(value):
            return np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # tensors that NumPy cannot hold
        pass
    raise _UnknownContentsError  # the conversion says why it refuses them


def _add_array(digest: Any, array: Any, depth: int) -> None:
    _text(digest, f"array {array.dtype.str if array.dtype.names is None else array.dtype.descr} {array.shape}")
    if array.dtype.hasobject:
        for item in array.ravel().tolist():
            _add(digest, item, depth + 1)
    else:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _add_table(digest: Any, table: pa.Table) -> None:
    class Sink:
        closed = False

        def write(self, data: Any) -> int:
            digest.update(data)
            return len(data)

        def flush(self) -> None: ...
        def close(self) -> None: ...

    with pa.ipc.new_stream(pa.PythonFile(Sink(), mode="w"), table.schema, options=WRITE_OPTIONS) as writer:
        writer.write_table(table.combine_chunks())


def _is_dataset(value: Any) -> bool:
    """Returns whether a value is a `datasets.Dataset`, whose fingerprint changes with its contents."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(value, datasets.Dataset)
