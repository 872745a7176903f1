"""Objects in memory that hold steps, told by their types."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.pipeline.names import canonical_name

#: (s, a, r, s', done) and (s, a, r, s', terminated, truncated).
_TRANSITION_LENGTHS = (5, 6)


def as_table(source: Any) -> pa.Table | None:
    """Returns a pandas, Polars or Arrow table as an Arrow table, or None.

    All objects with an Arrow stream are tables, such as a relation of DuckDB. Of the index of a pandas table, levels
    with a name are columns.

    Raises:
        UnsupportedColumnError: a column holds objects of several types.
    """
    name = type(source).__name__
    try:
        if type(source).__module__.partition(".")[0] == "pandas" and name == "DataFrame":
            levels = [level for level in source.index.names if level is not None]
            frame = source.reset_index(level=levels) if levels else source
            return pa.Table.from_pandas(frame, preserve_index=False)
        if type(source).__module__.partition(".")[0] == "polars" and name == "LazyFrame":
            source = source.collect()
        return pa.table(source) if hasattr(source, "__arrow_c_stream__") else None
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UnsupportedColumnError(
            f"cannot be converted to an Arrow table: {error}",
            file=f"{name} in memory",
            hint="give each column one type: numbers, texts, or lists of numbers",
        ) from error


def holds_transitions(source: Any) -> bool:
    """Returns whether an object is a list of tuples (s, a, r, s', done).

    The list may also be a tuple or a deque. Two end flags, terminated and truncated, may end the tuples. Named tuples
    of arrays [T, ...] are episodes.
    """
    if not isinstance(source, list | tuple | deque) or not source:
        return False
    first = source[0]
    if hasattr(first, "_fields"):
        rewards = [value for key, value in zip(first._fields, first, strict=True) if canonical_name(key) == "rewards"]
        return all(np.size(value) == 1 for value in rewards)
    return isinstance(first, tuple | list) and len(first) in _TRANSITION_LENGTHS


def holds_arrays(source: Any) -> bool:
    """Returns whether an object is a mapping of arrays."""
    return isinstance(source, Mapping) and len(source) > 0
