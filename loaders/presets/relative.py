"""Relative columns of a loader: what is subtracted from each, for one dataset."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gear_data.collection.output import RelativeTo
from gear_data.dataset.dataset import Dataset
from gear_data.errors import GearError
from gear_data.relative import Relative
from gear_data.schema import Schema


def relative_to(
    dataset: Dataset, schema: Schema, relative: Mapping[str, Relative], elements: frozenset[str]
) -> dict[str, RelativeTo]:
    """Returns column -> what is subtracted from it.

    Args:
        dataset: the dataset.
        schema: its columns, as batches have them.
        relative: the checked argument of the loader.
        elements: the names of elements that any dataset of the loader has.

    Raises:
        UnknownNameError, InvalidArgumentError: see `Relative.elements`; the error names the dataset.
    """
    try:
        return {
            column: RelativeTo(
                each.to, math.prod(schema[each.to].shape), each.elements(column, schema, elements), each.delta
            )
            for column, each in relative.items()
        }
    except GearError as error:
        error.file = error.file or str(dataset.path)
        raise
