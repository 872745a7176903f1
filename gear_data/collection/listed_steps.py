"""Arrays of listed steps: copied or interpolated from the arrays of the ranges of their steps.

A kernel fills the range, and its mask if steps are interpolated. `ListedSteps` makes the arrays of the listed steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.joined import ArrayLayout
from gear_data.collection.output import Output
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array


@dataclass(frozen=True)
class TakenSteps:
    """An array of listed steps, and the array of their range.

    Attributes:
        output: the array of the listed steps.
        span: the place of the array of the range, [B, width, ...].
        whole: the place of the array of the listed steps, [B, n, ...].
        mask: the place of the range's mask, [B, width], if steps of a column are interpolated; else None.
        rows: B, the rows of the arrays.
    """

    output: Output
    span: ArrayLayout
    whole: ArrayLayout
    mask: ArrayLayout | None
    rows: int

    def interpolate(self, memory: npt.NDArray[np.uint8], rows: Int64Array | slice) -> None:
        """Fills rows of the array with the steps between listed steps."""
        own = self._array(self.span, memory)[rows]
        valid = valid_steps(own, self.output) if self.mask is None else self._array(self.mask, memory)[rows]
        self._array(self.whole, memory)[rows] = interpolated(own, valid, self._numbers, half=self.output.half)

    @cached_property
    def _numbers(self) -> StepNumbers:
        return step_numbers(self.output)

    def _array(self, array: ArrayLayout, memory: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns all rows of an array, a view of the memory."""
        return np.ndarray((self.rows, *array.shape), array.dtype, memory, array.offset)


class ListedSteps:
    """Makes the arrays of listed steps of one dataset.

    Args:
        arrays: the arrays.

    Attributes:
        arrays: the arrays.
        interpolated: those whose steps are interpolated.
        takes, places: the others, for `gear_data.kernels.cpu.gather.take_steps`.
    """

    def __init__(self, arrays: Sequence[TakenSteps]) -> None:
        self.arrays = arrays
        copied = [each for each in arrays if each.output.weights is None]
        self.interpolated = [each for each in arrays if each.output.weights is not None]
        self.takes = np.zeros(len(copied), cpu.gather.TAKE)
        self.places = np.array([place for each in copied for place in each.output.places], np.int64)
        for record, each in zip(self.takes, copied, strict=True):
            size = each.output.step_bytes
            record["source"], record["target"], record["size"] = each.span.offset, each.whole.offset, size
            record["width"], record["steps"] = each.span.row_bytes // size, each.output.width

    def take(self, memory: npt.NDArray[np.uint8], rows: Int64Array, count: int) -> None:
        """Makes the listed steps of some rows.

        Args:
            memory: the buffer of the arrays.
            rows: int64 [B], the rows; empty: the rows 0 to count - 1.
            count: number of rows.
        """
        if len(self.takes):
            cpu.gather.take_steps(memory.ctypes.data, self.takes, self.places, rows, count)
        for each in self.interpolated:
            each.interpolate(memory, rows if len(rows) else slice(count))


#: The positions of steps in the array of their range, int64 [n], and the shares of the steps after them, float64 [n].
StepNumbers = tuple[Int64Array, npt.NDArray[np.float64]]


def step_numbers(output: Output) -> StepNumbers:
    """Returns the numbers of an output whose steps are interpolated."""
    return np.array(output.places, np.int64), np.array(output.weights, np.float64)


def valid_steps(mask: npt.NDArray[Any], output: Output) -> npt.NDArray[np.bool_]:
    """Returns which steps of a mask are no padding.

    Args:
        mask: [..., steps, *shape], maybe of the elements of a step.
        output: the mask's output.

    Returns:
        bool [..., steps].
    """
    of_step = tuple(range(-len(output.shape), 0))
    valid: npt.NDArray[np.bool_] = (mask == output.valid).all(axis=of_step)
    return valid


def interpolated(
    span: npt.NDArray[Any], valid: npt.NDArray[np.bool_], numbers: StepNumbers, *, half: str | None = None
) -> npt.NDArray[Any]:
    """Returns the listed steps of a column or a mask: see `gear_data.kernels.cpu.gather.interpolate_steps`.

    Args:
        span: [B, width, *shape], the range of the steps.
        valid: bool [B, width], which of them are no padding.
        numbers: see `step_numbers`.
        half: the dtype of `span` if it is of half precision, which is rounded float32.

    Returns:
        [B, n, *shape], of the dtype of `span`.
    """
    places, weights = numbers
    rows, shape = len(span), span.shape[2:]
    dtype = span.dtype if half is None else np.dtype(np.float32)
    # Not -1, which needs at least one row: a rank may have no row of a short batch.
    steps = np.ascontiguousarray(span, dtype).reshape(rows, span.shape[1], math.prod(shape))
    target = np.empty((rows, len(places), steps.shape[2]), dtype)
    cpu.gather.interpolate_steps(steps, valid, places, weights, target)
    with np.errstate(over="ignore"):  # a large value becomes infinite
        result: npt.NDArray[Any] = target.reshape(rows, len(places), *shape).astype(span.dtype, copy=False)
    return result
