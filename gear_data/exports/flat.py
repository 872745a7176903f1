"""Datasets as flat arrays, all steps one after another: what D4RL's HDF5 files and npz files hold.

Names are D4RL's (https://github.com/Farama-Foundation/D4RL): `terminals`, `timeouts`, `next_observations` and
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
from gear_data.exports.exporter import episode_blocks, require_columns
from gear_data.exports.metadata import episode_id, final_observations
from gear_data.schema import ColumnSpec
from gear_data.storage.block import offsets_of

_NEXT = "next_observations"
_NAMES = {"terminated": "terminals", "truncated": "timeouts"}
_USE_PARQUET = "export to Parquet, which holds it"


@dataclass(frozen=True)
class FlatColumn:
    """One array of all steps.

    Attributes:
        name: as the format has it.
        dtype: of the elements.
        shape: of all of it, [steps, ...].
        read: the steps of the first-th to last-th episode, [n, ...].
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[int, int], npt.NDArray[Any]]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def flat_columns(dataset: Dataset, format: str) -> list[FlatColumn]:
    """The arrays of a dataset. What cannot be told from them again is refused before anything is written.

    Raises:
        MissingColumnError: no observations, actions or rewards.
        UnsupportedColumnError: text or bytes; a column of a name that the format gives a meaning; final observations
            that some episodes lack, or that are of other columns; end flags that are not at an episode's last step
            alone, or both set there.
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
                f"{format} holds numbers, and these are {spec.dtype} values", column=spec.name, hint=_USE_PARQUET
            )
        if spec.has_final and spec.name != "observations":
            raise UnsupportedColumnError(
                f"{format} holds final observations of 'observations' alone", column=spec.name, hint=_USE_PARQUET
            )
        if spec.name in (_NEXT, "infos", "metadata"):
            raise UnsupportedColumnError(
                f"'{spec.name}' stands for something else in {format}",
                column=spec.name,
                hint="give it another name at conversion: --rename",
            )


def _check_flags(dataset: Dataset, format: str) -> None:
    """In a flat array nothing but the flags tells episodes apart."""
    for first, last in episode_blocks(dataset):
        terminated, truncated = (dataset.steps(name, first, last) for name in ("terminated", "truncated"))
        ends = np.zeros(len(terminated), np.bool_)
        ends[np.cumsum(dataset.lengths[first:last]) - 1] = True
        wrong = np.flatnonzero((terminated ^ truncated) != ends)
        if len(wrong):
            place = int(wrong[0])
            offsets = offsets_of(dataset.lengths[first:last])
            episode = int(np.searchsorted(offsets, place, side="right")) - 1
            where = f"step {place - offsets[episode]} of episode {episode_id(dataset, first + episode)}"
            raise UnsupportedColumnError(
                f"{format} ends an episode where one of the end flags is set, and at {where} they are "
                f"{bool(terminated[place])} and {bool(truncated[place])}",
                column="truncated" if truncated[place] else "terminated",
                hint=_USE_PARQUET,
            )


def _check_finals(dataset: Dataset, format: str) -> None:
    for first, last in episode_blocks(dataset):
        for place, final in enumerate(final_observations(dataset, first, last)):
            if final is None:
                raise UnsupportedColumnError(
                    f"episode {episode_id(dataset, first + place)} has no final observation and others have one; "
                    f"{format} has '{_NEXT}' for all or none",
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
        following = np.empty_like(observations := dataset.steps(spec.name, first, last))
        following[:-1] = observations[1:]
        finals = [final[spec.name] for final in final_observations(dataset, first, last) if final is not None]
        following[np.cumsum(dataset.lengths[first:last]) - 1] = finals
        return following

    return FlatColumn(_NEXT, spec.numpy_dtype, (dataset.num_steps, *spec.shape), read)


def flat_blocks(dataset: Dataset, column: FlatColumn) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """A column in order, piece by piece: number of the first step, steps [n, ...] C-contiguous."""
    for first, last in episode_blocks(dataset):
        yield int(dataset.offsets[first]), np.ascontiguousarray(column.read(first, last))
