"""BatchPlan: outputs as numbers for the collecting kernels, and the layout of a batch in its buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.collection.output import TIMESTEPS, Output, Padding, check_batch_bytes
from gear_data.collection.reader import ColumnReader
from gear_data.errors import UnsupportedColumnError
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array

#: Means and scales are repeated up to this many elements: 16 KiB, which stay in the cache.
_AFFINE_ELEMENTS = 1024


@dataclass(frozen=True)
class CollectSource:
    """One dataset of a batch: the reader of its steps, its columns, and the outputs made of them."""

    reader: ColumnReader
    schema: Schema
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class ArrayLayout:
    """The position of one array in the buffer of a batch.

    Attributes:
        key: name in the batch.
        shape: shape of a row.
        dtype: dtype of the array; uint16 for bfloat16.
        offset: first byte in the buffer.
        row_bytes: bytes of a row.
    """

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    row_bytes: int


class BatchPlan:
    """The plan by which kernels fill batches of given outputs, and the layout of a buffer.

    Args:
        sources: one for each dataset. Their outputs have the same keys, widths, shapes and dtypes (`check_alike`).
        rows: windows of a full batch.
        batches: the most batches that share a buffer.

    Attributes:
        plans: int64 [outputs, PLAN_FIELDS] for each source, see `gear_data.kernels.cpu.collect`. They hold addresses
            of arrays that live as long as this plan.
        arrays: the layout of each output.
        offsets: int64 [outputs], the first byte of each array in a buffer.
        size: bytes of a buffer.
        row_bytes: bytes of one row of all arrays.

    Raises:
        InvalidArgumentError: a batch would be too large.
        UnsupportedColumnError: an output cannot be computed from its column.
    """

    def __init__(self, sources: Sequence[CollectSource], rows: int, batches: int = 1) -> None:
        outputs = sources[0].outputs
        check_batch_bytes(outputs, rows)
        # Arrays to which the plans point.
        self._templates: list[npt.NDArray[Any]] = []
        self.plans = [self._plan(source) for source in sources]
        row_bytes = [output.row_bytes for output in outputs]
        aligned = -(-batches * rows * np.array(row_bytes, np.int64) // ALIGNMENT) * ALIGNMENT
        self.offsets: Int64Array = np.cumsum(aligned) - aligned
        self.size = max(1, int(aligned.sum()))
        self.row_bytes = sum(row_bytes)
        self.arrays = [
            ArrayLayout(output.key, output.array_shape, output.array_dtype, offset, output.row_bytes)
            for output, offset in zip(outputs, self.offsets.tolist(), strict=True)
        ]

    def _plan(self, source: CollectSource) -> Int64Array:
        """Returns int64 [outputs, PLAN_FIELDS]."""
        from gear_data.kernels.cpu import collect as cpu

        plan = np.array([self._plan_row(output, source) for output in source.outputs], np.int64)
        plan = plan.reshape(-1, cpu.PLAN_FIELDS)
        alike: dict[tuple[int, ...], int] = {}
        for number, row in enumerate(plan):
            key = tuple(row[[cpu.FIRST, cpu.WIDTH, cpu.PAD_LEFT, cpu.WITHIN, cpu.SHIFT]].tolist())
            row[cpu.LIKE] = alike.setdefault((*key, int(row[cpu.FINALS] != 0)), number)
        return plan

    def _plan_row(self, output: Output, source: CollectSource) -> list[int]:
        from gear_data.kernels.cpu import collect as cpu

        row = [0] * cpu.PLAN_FIELDS
        row[cpu.OUT_BYTES] = output.step_bytes
        row[cpu.FIRST], row[cpu.WIDTH], row[cpu.PAD_LEFT] = output.first, output.width, int(output.pad_left)
        row[cpu.WITHIN], row[cpu.SHIFT] = int(output.within_window), output.shift
        row[cpu.PADDING] = tuple(Padding).index(output.padding)
        row[cpu.FILL] = self._template(output, output.fill)
        final_column = output.source if output.column else output.mask_column
        if output.shift > 0 and final_column is not None:
            row[cpu.FINALS] = source.reader.final_address(final_column)
        if not output.column:
            if output.source == TIMESTEPS:
                row[cpu.KIND], row[cpu.ORIGIN] = cpu.KIND_TIMESTEP, output.origin
                row[cpu.OUT_TYPE] = cpu.TIMESTEP_TYPES.index(output.dtype)
            else:
                row[cpu.KIND] = cpu.KIND_CONSTANT
                row[cpu.VALID] = self._template(output, output.valid, constant=True)
            return row
        spec = source.schema[output.source]
        row[cpu.COLUMN] = source.schema.index(output.source)
        row[cpu.SOURCE_BYTES] = spec.row_bytes
        unchanged = output.mean is None and output.discounts is None and output.half is None
        if unchanged and np.dtype(output.dtype) == spec.numpy_dtype:
            row[cpu.KIND] = cpu.KIND_COPY
            return row
        source_type = str(spec.storage_dtype)
        out_type = output.half or output.dtype
        if source_type not in cpu.SOURCE_TYPES or out_type not in cpu.OUT_TYPES:
            raise UnsupportedColumnError(f"cannot be turned from {spec.dtype} into {out_type}", column=spec.name)
        row[cpu.ELEMENTS] = spec.size
        row[cpu.SOURCE_TYPE] = cpu.SOURCE_TYPES.index(source_type)
        row[cpu.OUT_TYPE] = cpu.OUT_TYPES.index(out_type)
        if output.discounts is not None:
            row[cpu.KIND] = cpu.KIND_DISCOUNTED
            row[cpu.DISCOUNTS] = self._keep(np.array(output.discounts, np.float64))
            row[cpu.HORIZON] = len(output.discounts)
            return row
        row[cpu.KIND] = cpu.KIND_CONVERT
        # Repeated for several rows: a long loop over elements lets the kernel use vector instructions.
        repeats = max(1, min(output.width, _AFFINE_ELEMENTS // spec.size))
        affine = np.empty((2, repeats, spec.size))
        affine[0] = 0.0 if output.mean is None else np.ravel(output.mean)
        affine[1] = 1.0 if output.scale is None else np.ravel(output.scale)
        row[cpu.AFFINE], row[cpu.AFFINE_ROWS] = self._keep(affine), repeats
        return row

    def _template(self, output: Output, step: Any, *, constant: bool = False) -> int:
        """Returns the address of `width` copies of a step.

        Returns 0 if all bytes are zero, unless the step is a `constant` that the kernel copies.
        """
        rows = np.empty((output.width, *output.shape), output.dtype)
        rows[:] = np.asarray(step).astype(output.dtype)
        if output.half == "float16":
            rows = rows.astype(np.float16)
        elif output.half is not None:
            rows = _bfloat16_bits(rows)
        if not constant and not rows.view(np.uint8).any():
            return 0
        return self._keep(rows)

    def _keep(self, array: npt.NDArray[Any]) -> int:
        """Keeps an array alive, and returns its address."""
        self._templates.append(array)
        return int(array.ctypes.data)


def _bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds finite numbers to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
