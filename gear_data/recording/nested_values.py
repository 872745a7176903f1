"""Observations and actions of many arrays: mappings and tuples, as Dict and Tuple spaces have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def row_of(values: Any, row: int) -> Any:
    """Returns one row of a batch."""
    if isinstance(values, Mapping):
        return {name: row_of(each, row) for name, each in values.items()}
    if isinstance(values, tuple):
        return tuple(row_of(each, row) for each in values)
    return values[row]


def set_row(values: Any, row: int, new: Any) -> None:
    """Writes one row of a batch."""
    if isinstance(values, Mapping):
        for name, each in values.items():
            set_row(each, row, new[name])
    elif isinstance(values, tuple):
        for each, part in zip(values, new, strict=True):
            set_row(each, row, part)
    else:
        values[row] = new


def rows(values: Any, numbers: npt.NDArray[np.intp]) -> Any:
    """Returns some rows of a batch."""
    if isinstance(values, Mapping):
        return {name: rows(each, numbers) for name, each in values.items()}
    if isinstance(values, tuple):
        return tuple(rows(each, numbers) for each in values)
    return np.asarray(values)[numbers]


def copy(values: Any) -> Any:
    """Returns a copy: environments may change their arrays."""
    if isinstance(values, Mapping):
        return {name: copy(each) for name, each in values.items()}
    if isinstance(values, tuple):
        return tuple(copy(each) for each in values)
    return values if isinstance(values, str | bytes) else np.array(values)


def batch_copy(batch: Any) -> Any:
    """Returns a copy of a batch. The text of n environments, a tuple of Gymnasium, becomes an array of n objects."""
    if isinstance(batch, Mapping):
        return {name: batch_copy(each) for name, each in batch.items()}
    if isinstance(batch, tuple):
        if batch and all(isinstance(each, str) for each in batch):
            return np.array(batch, object)
        return tuple(batch_copy(each) for each in batch)
    return np.array(batch)


def stacked(values: Sequence[Any]) -> Any:
    """Returns values of many steps as one batch. Of mappings, the names that all steps have."""
    first = values[0]
    if isinstance(first, Mapping):
        return {
            name: stacked([each[name] for each in values]) for name in first if all(name in each for each in values)
        }
    if isinstance(first, tuple):
        return tuple(stacked([each[number] for each in values]) for number in range(len(first)))
    return np.stack([np.asarray(each) for each in values])
