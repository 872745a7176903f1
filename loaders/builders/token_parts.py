"""Batches of tokens of several datasets: each dataset's windows are collected and encoded, and the rows are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gear_data.loaders.component import LoaderComponent
from gear_data.selection.windows import Int64Array, Windows


@dataclass
class DatasetPart:
    """The windows of one dataset in a batch.

    Attributes:
        number: the dataset.
        windows: its windows, in its own packed rows if they are packed.
        rows: int64 [r], the rows of the batch that its rows are.
        numbers: see `BatchRows`.
        arrays: the collected arrays, which are filled in.
    """

    number: int
    windows: Windows
    rows: Int64Array
    numbers: Int64Array
    arrays: dict[str, Any]


def row_numbers(windows: Windows) -> Int64Array:
    """Returns the number of each row of a batch; see `BatchRows`."""
    packing = windows.packing
    if packing is None:
        return windows.row + np.arange(len(windows))
    first: Int64Array = np.searchsorted(packing.place, np.arange(packing.rows) * packing.steps)
    return windows.row + first


def dataset_parts(windows: Windows, components: Sequence[LoaderComponent]) -> list[DatasetPart]:
    """Returns the parts of a batch with windows of several datasets; of a batch without windows, an empty one."""
    source, numbers, packing = windows.source, row_numbers(windows), windows.packing
    parts = []
    for number in np.unique(source).tolist() or [0]:
        chosen = np.flatnonzero(np.asarray(source) == number)
        own = replace(windows[chosen], source=number)
        rows = chosen
        if packing is not None:
            place = packing.place[chosen]
            row, steps = place // packing.steps, components[number].request.context
            rows = np.unique(row)
            own.packing = replace(
                packing[chosen], steps=steps, rows=len(rows),
                place=np.searchsorted(rows, row) * steps + place % packing.steps,
            )  # fmt: skip
        parts.append(DatasetPart(number, own, rows, numbers[rows], {}))
    return parts
