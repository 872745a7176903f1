"""Datasets as flat arrays with the steps of all episodes.

The D4RL export (HDF5) and the npz export write these arrays.

Array names follow D4RL (https://github.com/Farama-Foundation/D4RL): `terminals`, `timeouts`, `next_observations` and
`infos/NAME`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.errors import UnsupportedColumnError
from gear_data.exports.exporter import episode_blocks, rename_hint, require_columns
from gear_data.exports.metadata import episode_id, final_observations
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import offsets_of

_NEXT = "next_observations"
_NAMES = {"terminated": "terminals", "truncated": "timeouts"}
_USE_PARQUET = "export to Parquet, which can store it"


@dataclass(frozen=True)
class FlatColumn:
    """One array of all steps.

    Attributes:
        name: name in the file.
        dtype: dtype of the elements.
        shape: shape of the whole array, [steps, ...].
        read: returns the steps of the episodes from one position to another, [n, ...].
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[int, int], npt.NDArray[Any]]

    @property
    def bytes(self) -> int:
        """Size of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


def flat_columns(dataset: Dataset, format: str) -> list[FlatColumn]:
    """Returns the arrays of a dataset.

    Data that a reader could not recover from the arrays raises an error before any file is written.

    Raises:
        MissingColumnError: observations, actions or rewards are missing.
        UnsupportedColumnError: a column holds text or bytes, or has a name with another meaning in the format; final
            observations are missing in some episodes, or have other columns than `observations`; end flags are set
            elsewhere than at the last step of an episode, or both are set there.
    """
    _check_columns(dataset, format)
    _check_flags(dataset, format)
    columns = [_column(dataset, spec) for spec in dataset.schema.source_columns]
    if dataset.schema.final_columns:
        _check_finals(dataset, format)
        columns.append(_next_observations(dataset))
    return columns


def _check_columns(dataset: Dataset, format: str) -> None:
    schema = dataset.schema
    require_columns(dataset, schema.names, format)
    for spec in schema.source_columns:
        if spec.variable_length:
            raise UnsupportedColumnError(
                f"{format} stores only numbers, but the column has {spec.dtype} values",
                column=spec.name,
                hint=_USE_PARQUET,
            )
        if spec.has_final and spec.name != "observations":
            raise UnsupportedColumnError(
                f"{format} stores final observations only of 'observations'", column=spec.name, hint=_USE_PARQUET
            )
        if spec.name in (_NEXT, "infos", "metadata"):
            raise UnsupportedColumnError(
                f"the name '{spec.name}' has another meaning in {format}",
                column=spec.name,
                hint=rename_hint(spec.name),
            )


def _check_flags(dataset: Dataset, format: str) -> None:
    """Checks the end flags. In flat arrays, only they separate episodes."""
    for first, last in episode_blocks(dataset):
        terminated, truncated = (dataset.steps(name, first, last) for name in ("terminated", "truncated"))
        ends = np.zeros(len(terminated), np.bool_)
        ends[np.cumsum(dataset.lengths[first:last]) - 1] = True
        # Not by `^`, to which two flags at a step inside are none: readers end an episode there.
        wrong = np.flatnonzero(terminated.astype(np.int8) + truncated != ends)
        if len(wrong):
            position = int(wrong[0])
            offsets = offsets_of(dataset.lengths[first:last])
            episode = int(np.searchsorted(offsets, position, side="right")) - 1
            where = f"step {position - offsets[episode]} of episode {episode_id(dataset, first + episode)}"
            raise UnsupportedColumnError(
                f"{format} needs exactly one end flag at each last step and none elsewhere; at {where}, terminated is "
                f"{bool(terminated[position])} and truncated is {bool(truncated[position])}",
                column="truncated" if truncated[position] else "terminated",
                hint=_USE_PARQUET,
            )


def _check_finals(dataset: Dataset, format: str) -> None:
    for first, last in episode_blocks(dataset):
        for position, final in enumerate(final_observations(dataset, first, last)):
            if final is None:
                raise UnsupportedColumnError(
                    f"episode {episode_id(dataset, first + position)} has no final observation but others have one; "
                    f"{format} stores '{_NEXT}' for all episodes or for none",
                    column="observations",
                    hint=_USE_PARQUET,
                )


def _column(dataset: Dataset, spec: ColumnSpec) -> FlatColumn:
    name = _NAMES.get(spec.name, spec.name)
    if name.startswith("infos."):
        name = name.replace(".", "/", 1)
    shape = (dataset.num_steps, *spec.shape)
    return FlatColumn(name, spec.numpy_dtype, shape, lambda first, last: dataset.steps(spec.name, first, last))


def _next_observations(dataset: Dataset) -> FlatColumn:
    spec = dataset.schema["observations"]

    def read(first: int, last: int) -> npt.NDArray[Any]:
        observations = dataset.steps(spec.name, first, last)
        shifted = np.empty_like(observations)
        shifted[:-1] = observations[1:]
        finals = [final[spec.name] for final in final_observations(dataset, first, last) if final is not None]
        shifted[np.cumsum(dataset.lengths[first:last]) - 1] = finals
        return shifted

    return FlatColumn(_NEXT, spec.numpy_dtype, (dataset.num_steps, *spec.shape), read)


def flat_blocks(dataset: Dataset, column: FlatColumn) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yields a column in pieces.

    A piece is the position of its first step, and its steps, [n, ...] C-contiguous.
    """
    for first, last in episode_blocks(dataset):
        yield int(dataset.offsets[first]), np.ascontiguousarray(column.read(first, last))
