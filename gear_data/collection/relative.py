"""Relative arrays: a column minus another column's value at the window's first step.

A reader fills the arrays of both columns in float64, and a mask of the valid steps. Then
`gear_data.kernels.cpu.relative.relate` subtracts, normalises and pads, and writes the array of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.joined import ArrayLayout
from gear_data.collection.output import Output, RelativeTo
from gear_data.kernels import cpu
from gear_data.kernels.output_plan import OutputPlanArray


@dataclass(frozen=True)
class RelativeArray:
    """The arguments of the kernel `relate` for one array of a batch.

    Attributes:
        array: RELATIVE [1].
        parts: RELATIVE_PART [n].
        elements: int64 [elements], see `RelativeTo`.
        plan: OUTPUT_PLAN [1], how differences become values of the batch.
    """

    array: npt.NDArray[Any]
    parts: npt.NDArray[Any]
    elements: npt.NDArray[np.int64]
    plan: OutputPlanArray

    def write(self, address: int, rows: npt.NDArray[np.int64], count: int) -> None:
        """Writes the array in a buffer at an address; see the kernel."""
        cpu.relative.relate(address, self.array, self.parts, self.elements, self.plan, rows, count)


def relative_array(
    relative: RelativeTo,
    whole: ArrayLayout,
    width: int,
    parts: Sequence[tuple[Output, ArrayLayout]],
    plan: OutputPlanArray,
) -> RelativeArray:
    """Returns the arguments of the kernel.

    Args:
        relative: what is subtracted.
        whole: the place of the array in the buffer.
        width: bytes of a step of the array, with the zeros behind it.
        parts: the outputs of the column, then those of the column that is subtracted, then the mask; with their places.
        plan: OUTPUT_PLAN [1].
    """
    *columns, (_, mask) = parts
    array, records = np.zeros(1, cpu.relative.RELATIVE), np.zeros(len(columns), cpu.relative.RELATIVE_PART)
    array[0] = (whole.offset, width, mask.offset, relative.size, relative.delta)
    first, elements = 0, len(relative.elements)
    for record, (output, layout) in zip(records, columns, strict=True):
        size = output.step_bytes // layout.dtype.itemsize
        of_state = first >= elements
        record["source"], record["size"], record["state"] = layout.offset, size, of_state
        record["first"] = first - elements if of_state else first
        first += size
    return RelativeArray(array, records, np.array(relative.elements, np.int64), plan)
