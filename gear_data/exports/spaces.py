"""Gymnasium spaces of a dataset's columns, as JSON for Minari.

The format is in `minari.serialization`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gear_data.dataset.dataset import Dataset
from gear_data.schema import ColumnSpec

#: Integers with more values than this are numbers, not choices.
_MAX_CHOICES = 1 << 20
#: Character set of texts. The dataset does not store the real one.
_CHARACTERS = "".join(chr(code) for code in range(32, 127))
_MAX_TEXT = 1 << 20


def space(dataset: Dataset, name: str) -> dict[str, Any]:
    """Returns the space of a column, or the nested Dict of the columns `NAME.KEY`.

    An int64 scalar is Discrete and covers the values of the dataset, if they span at most 2^20 numbers. Text is Text.
    Every other column is a Box with the range of its dtype, because a dataset does not store the environment's bounds.
    """
    if name in dataset.schema:
        return _leaf(dataset, dataset.schema[name])
    keys = {
        spec.name.removeprefix(f"{name}.").split(".", 1)[0]
        for spec in dataset.schema.source_columns
        if spec.name.startswith(f"{name}.")
    }
    return {"type": "Dict", "subspaces": {key: space(dataset, f"{name}.{key}") for key in sorted(keys)}}


def _leaf(dataset: Dataset, spec: ColumnSpec) -> dict[str, Any]:
    if spec.variable_length:
        return {"type": "Text", "max_length": _MAX_TEXT, "min_length": 0, "charset": _CHARACTERS}
    if spec.dtype == "int64" and spec.shape == ():
        statistics = dataset.statistics[spec.name]
        start = min(0, int(statistics.min[0]))
        count = int(statistics.max[0]) - start + 1
        if count <= _MAX_CHOICES:
            return {"type": "Discrete", "dtype": "int64", "start": start, "n": count}
    low, high = _bounds(spec.numpy_dtype)
    return {
        "type": "Box",
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "low": np.full(spec.shape, low, spec.dtype).tolist(),
        "high": np.full(spec.shape, high, spec.dtype).tolist(),
    }


def _bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return -np.inf, np.inf
    info = np.iinfo(dtype)
    return info.min, info.max
