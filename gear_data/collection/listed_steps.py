"""Arrays of listed steps: taken from the array of a range that has them.

A kernel fills the range, and `take` copies the listed steps into another array of the same buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.joined import ArrayLayout


@dataclass(frozen=True)
class TakenSteps:
    """The positions of an array of listed steps, and of the array of their range.

    Attributes:
        number: of the array among a batch's arrays.
        span: the array of the range, [B, width, ...].
        whole: the array of the listed steps, [B, n, ...].
        places: n positions in the range.
        step_bytes: bytes of a step.
    """

    number: int
    span: ArrayLayout
    whole: ArrayLayout
    places: tuple[int, ...]
    step_bytes: int

    def take(self, memory: npt.NDArray[np.uint8], rows: int) -> None:
        """Copies the listed steps of `rows` rows."""
        source, target = self.steps(self.span, memory, rows), self.steps(self.whole, memory, rows)
        for number, place in enumerate(self.places):
            target[:, number] = source[:, place]

    def steps(self, array: ArrayLayout, memory: npt.NDArray[Any], rows: int) -> npt.NDArray[np.uint8]:
        """Returns the steps of an array, a view of the memory.

        The result is uint8 [rows, steps, bytes of a step].
        """
        shape = (rows, array.row_bytes // self.step_bytes, self.step_bytes)
        return np.ndarray(shape, np.uint8, memory, array.offset)
