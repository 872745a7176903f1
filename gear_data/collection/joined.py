"""Arrays of stacked and of padded columns: joined from the arrays of several outputs.

A kernel fills one array for each part, and `join` copies them side by side into one array of the same buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import Output
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array


@dataclass(frozen=True)
class Joined:
    """An array that is joined from the arrays of consecutive outputs.

    Attributes:
        output: the joined array, as a preset describes it.
        first, count: its parts are the outputs first to first + count - 1. They have the same steps and dtype.
    """

    output: Output
    first: int
    count: int


@dataclass(frozen=True)
class ArrayLayout:
    """The position of one array in the buffer of a batch.

    Attributes:
        key: name in the batch.
        shape: shape of a row.
        dtype: dtype of the array.
        offset: first byte in the buffer.
        row_bytes: bytes of a row.
    """

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    row_bytes: int

    def steps(self, memory: npt.NDArray[np.uint8], rows: int) -> npt.NDArray[np.uint8]:
        """Returns the steps of some rows, a view of the memory.

        The result is uint8 [steps, bytes of a step].
        """
        return np.ndarray((rows * math.prod(self.shape[:-1]), self.step_bytes), np.uint8, memory, self.offset)

    @cached_property
    def step_bytes(self) -> int:
        """Bytes of a step."""
        return self.shape[-1] * self.dtype.itemsize


@dataclass(frozen=True)
class JoinLayout:
    """The positions of a joined array and of its parts."""

    whole: ArrayLayout
    parts: tuple[ArrayLayout, ...]

    def join(self, memory: npt.NDArray[np.uint8], rows: int, chosen: Int64Array | None = None) -> None:
        """Copies the parts of `rows` rows into the joined array; chosen: of these rows only."""
        whole, first = self.whole.steps(memory, rows), 0
        for part in self.parts:
            if chosen is None:
                cpu.gather.write_columns(part.steps(memory, rows), whole, first)
            else:
                cpu.gather.write_columns_of_rows(part.steps(memory, rows), whole, first, chosen, len(whole) // rows)
            first += part.step_bytes
