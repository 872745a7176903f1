"""Relative columns of a loader: what is subtracted from each, for one dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gear_data.collection.output import RelativeTo
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.relative.chunks import Chunks
from gear_data.errors import GearError, InvalidArgumentError
from gear_data.loaders.presets.offsets import ColumnWeights
from gear_data.relative import Relative
from gear_data.schema import ColumnSpec, Schema


@dataclass(frozen=True)
class RelativeColumn:
    """A relative column of one dataset's batches.

    Attributes:
        to: what is subtracted.
        steps: the steps of a window that its array has.
        per_step: whether each of them has statistics of its own.
        interpolated: whether values between two steps are in the array.
    """

    to: RelativeTo
    steps: tuple[int, ...]
    per_step: bool
    interpolated: bool


def relative_columns(
    dataset: Dataset,
    schema: Schema,
    relative: Mapping[str, Relative],
    elements: frozenset[str],
    steps: Callable[[ColumnSpec], Sequence[int]],
    weights: ColumnWeights,
) -> dict[str, RelativeColumn]:
    """Returns the relative columns of a dataset.

    Args:
        dataset: the dataset.
        schema: its columns, as batches have them.
        relative: the checked argument of the loader.
        elements: the names of elements that any dataset of the loader has.
        steps: returns the steps of a window that the array of a column has.
        weights: the columns whose steps are interpolated.

    Raises:
        UnknownNameError, InvalidArgumentError: see `Relative.elements`; the error names the dataset.
    """
    try:
        return {
            column: RelativeColumn(
                RelativeTo(
                    each.to, math.prod(schema[each.to].shape), each.elements(column, schema, elements), each.delta
                ),
                tuple(steps(schema[column])),
                each.per_step,
                column in weights,
            )
            for column, each in relative.items()
        }
    except GearError as error:
        error.file = error.file or str(dataset.path)
        raise


def difference_chunks(
    dataset: Dataset, relative: RelativeColumn, columns: tuple[str, ...], state: tuple[str, ...]
) -> Chunks:
    """Returns the chunks of a relative column, which have its statistics.

    Args:
        dataset: the dataset.
        relative: the column.
        columns: the columns of the dataset that it is made of.
        state: the columns of the dataset that are subtracted.

    Raises:
        InvalidArgumentError: values are interpolated.
    """
    if relative.interpolated:
        raise InvalidArgumentError(
            "there are no statistics of differences that Seconds interpolates",
            file=str(dataset.path),
            column=", ".join(columns),
            hint="give its Seconds fill='hold', or give normalize= a mapping of the column to (mean, std)",
        )
    to = relative.to
    return Chunks(dataset, columns, state, to.elements, relative.steps, to.delta, relative.per_step)
