"""Arrays of stacked and of padded columns: joined from the arrays of several outputs.

A kernel fills one array for each part, and `gear_data.kernels.cpu.gather.join` copies them side by side into one array
of the same buffer. The rest of a step is zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import Output
from gear_data.kernels import cpu


@dataclass(frozen=True)
class Joined:
    """An array that is joined from the arrays of consecutive outputs.

    Attributes:
        output: the joined array, as a preset describes it.
        first, count: its parts are the outputs first to first + count - 1. They have the same steps and dtype.
        elements: the elements [first, last) that the array takes of each part; empty: all.
    """

    output: Output
    first: int
    count: int
    elements: tuple[tuple[int, int], ...] = ()


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

    @property
    def step_bytes(self) -> int:
        """Bytes of the last axis."""
        return self.shape[-1] * self.dtype.itemsize


def join_parts(
    whole: ArrayLayout, parts: Sequence[ArrayLayout], elements: Sequence[tuple[int, int]]
) -> npt.NDArray[Any]:
    """Returns JOIN_PART [parts], see `gear_data.kernels.cpu.gather`: the parts of a joined array.

    Args:
        whole: the joined array.
        parts: the arrays of its parts.
        elements: see `Joined`.
    """
    found = np.zeros(len(parts), cpu.gather.JOIN_PART)
    first, item = 0, whole.dtype.itemsize
    for number, (record, part) in enumerate(zip(found, parts, strict=True)):
        begin, end = elements[number] if elements else (0, part.shape[-1])
        record["source"], record["size"] = part.offset + begin * item, (end - begin) * item
        record["stride"] = part.step_bytes
        record["target"], record["width"] = whole.offset + first, whole.step_bytes
        record["steps"] = math.prod(whole.shape[:-1])
        first += (end - begin) * item
    found["zeros"][-1] = whole.step_bytes - first
    return found
