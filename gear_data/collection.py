"""Collection: windows to one padded batch, whatever memory or node the steps are in.

`Collector` turns the outputs a preset asks for into a plan once, and then fills a batch in one call to a
`ColumnReader`. A batch lives in one leased buffer; the lease ends, and the buffer is used again, when the last
array over it dies. So no consumer can see a batch overwritten, however long it keeps it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array, Windows

_ALIGNMENT = 256
#: Buffers kept for reuse; more than prefetching holds at once need not stay hot.
_IDLE_BUFFERS = 8
#: Far above any memory, and far below where a batch's sizes would overflow int64.
_MAX_BATCH_BYTES = 1 << 40

TIMESTEPS = "timesteps"
MASK = "mask"


class Padding(enum.StrEnum):
    """What stands where an output has no valid step."""

    FILL = "fill"  # `Output.fill`
    EDGE = "edge"  # the nearest valid step
    FIRST = "first"  # the first valid step
    RUN_ON = "run_on"  # TIMESTEPS alone: counting goes on


@dataclass(frozen=True)
class Output:
    """One array of a batch: [B, width, *shape].

    Attributes:
        key: its name in the batch.
        source: a column's name, or `TIMESTEPS` or `MASK` where `column` is False.
        dtype: NumPy name of the output's dtype.
        shape: shape of one step.
        first, width: the steps wanted, relative to the window's start: first to first + width.
        pad_left: valid steps stand at the end; else every step stands at its own place.
        fill: one padding step, [*shape] or a scalar; what the batch holds, after normalising.
        mean, scale: output = (value - mean) * scale, float64 [elements] or [1]; None copies (or casts).
        column: whether `source` is a column.
        within_window: steps outside the window are padding; else only those outside the episode are.
        padding: what padding is. Where a window has no valid step at all, `fill`.
        origin: TIMESTEPS: the number of an episode's first step.
        valid: MASK: the value at valid steps; `fill` is that of padding.
        following: each step's row is that of the step after it, and of the last step the final observation. Where an
            episode has none, that row is padding (in a MASK: 0 there).
        discounts: output = sum over j of discounts[j] * value[t + j], as far as the episode goes; computed in float64.
            For n-step returns 1, gamma, ..., gamma^(n - 1).
    """

    key: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    width: int
    pad_left: bool = False
    fill: Any = 0
    mean: npt.NDArray[np.float64] | None = None
    scale: npt.NDArray[np.float64] | None = None
    column: bool = True
    within_window: bool = True
    padding: Padding = Padding.FILL
    origin: int = 0
    valid: Any = 1
    following: bool = False
    discounts: tuple[float, ...] | None = None

    @property
    def step_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def check_batch_bytes(outputs: Sequence[Output], rows: int) -> None:
    """Raises InvalidArgumentError where a batch of so many windows would be larger than 1 TiB."""
    # Python's integers, which do not overflow.
    size = rows * sum(output.width * output.step_bytes for output in outputs)
    if size > _MAX_BATCH_BYTES:
        widest = max(output.width for output in outputs)
        raise InvalidArgumentError(
            f"a batch of {rows:,} windows of up to {widest:,} steps would be {size / 2**30:,.0f} GiB",
            hint=f"choose batch_size, context and offsets so that it is less than {_MAX_BATCH_BYTES >> 30:,} GiB",
        )


@dataclass(frozen=True)
class Places:
    """Where the outputs of one batch go, and how: see `gear_data.kernels.cpu.collect`.

    Attributes:
        plan: int64 [outputs, PLAN_FIELDS].
        addresses: int64 [outputs].
    """

    plan: Int64Array
    addresses: Int64Array


class ColumnReader(Protocol):
    """Reads windows of columns to their places: from this process's memory, or another node's."""

    def read(self, windows: Windows, places: Places) -> int:
        """Fills the places and returns the bytes of valid steps written."""


class _Lease:
    """A buffer lent out. Arrays made over it hold it; when the last of them dies it goes back to its pool."""

    __slots__ = ("__array_interface__", "_buffer", "_idle")

    def __init__(self, buffer: npt.NDArray[np.uint8], idle: list[npt.NDArray[np.uint8]]) -> None:
        self._buffer = buffer
        self._idle = idle
        self.__array_interface__ = buffer.__array_interface__

    def __del__(self, limit: int = _IDLE_BUFFERS) -> None:
        # `limit` is bound here since a module's names are gone when leases end at interpreter exit.
        if len(self._idle) < limit:
            self._idle.append(self._buffer)


class BufferPool:
    """Buffers of one size, last in first out: the one used last is the one still in the cache.

    Args:
        size: bytes.
        reuse: False gives every batch memory of its own, for batches handed to other processes.
    """

    def __init__(self, size: int, *, reuse: bool) -> None:
        self._size = size
        self._reuse = reuse
        # list.append and list.pop are atomic, and leases end in whatever thread drops the last array.
        self._idle: list[npt.NDArray[np.uint8]] = []

    def lease(self) -> npt.NDArray[np.uint8]:
        """uint8 [size], aligned to 256 bytes; its memory is not used again while it or a view of it lives."""
        try:
            buffer = self._idle.pop()
        except IndexError:
            raw = np.empty(self._size + _ALIGNMENT, np.uint8)
            skip = -raw.ctypes.data % _ALIGNMENT
            buffer = raw[skip : skip + self._size]
        return np.asarray(_Lease(buffer, self._idle)) if self._reuse else buffer


@dataclass(frozen=True)
class Collected:
    """A batch: key -> array [B, width, *shape], and its sizes in bytes with and without padding."""

    arrays: Mapping[str, npt.NDArray[Any]]
    padded_bytes: int
    valid_bytes: int


class Collector:
    """Fills batches of given outputs.

    Args:
        reader: where the steps are.
        schema: the dataset's.
        outputs: what a batch is made of.
        rows: windows of a full batch; shorter ones are fine.
        reuse: see `BufferPool`.

    Raises:
        InvalidArgumentError: a batch would be too large.
        UnsupportedColumnError: an output that cannot be computed from its column.
    """

    def __init__(
        self, reader: ColumnReader, schema: Schema, outputs: Sequence[Output], rows: int, *, reuse: bool
    ) -> None:
        check_batch_bytes(outputs, rows)
        self._reader = reader
        self._outputs = tuple(outputs)
        # Templates the plan points to; they live as long as the plan.
        self._templates: list[npt.NDArray[Any]] = []
        self._plan = np.array([self._plan_row(output, schema) for output in outputs], np.int64)
        sizes = np.array([rows * output.width * output.step_bytes for output in outputs], np.int64)
        padded = -(-sizes // _ALIGNMENT) * _ALIGNMENT
        self._offsets: Int64Array = np.cumsum(padded) - padded
        self._row_bytes = sum(output.width * output.step_bytes for output in outputs)
        self._layout = [
            (output.key, (output.width, *output.shape), np.dtype(output.dtype), int(offset))
            for output, offset in zip(outputs, self._offsets, strict=True)
        ]
        self._pool = BufferPool(max(1, int(padded.sum())), reuse=reuse)

    def _plan_row(self, output: Output, schema: Schema) -> list[int]:
        from gear_data.kernels import cpu

        row = [0] * cpu.PLAN_FIELDS
        row[cpu.OUT_BYTES] = output.step_bytes
        row[cpu.FIRST], row[cpu.WIDTH], row[cpu.PAD_LEFT] = output.first, output.width, int(output.pad_left)
        row[cpu.FILL] = self._template(output, output.fill)
        if not output.column:
            if output.source == TIMESTEPS:
                row[cpu.KIND] = cpu.KIND_TIMESTEP
            else:
                row[cpu.KIND] = cpu.KIND_CONSTANT
                row[cpu.VALID] = self._template(output, 1)
            return row
        spec = schema[output.source]
        row[cpu.COLUMN] = schema.index(output.source)
        row[cpu.SOURCE_BYTES] = spec.row_bytes
        if output.mean is None and np.dtype(output.dtype) == spec.numpy_dtype:
            row[cpu.KIND] = cpu.KIND_COPY
            return row
        source_type = str(spec.storage_dtype)
        if source_type not in cpu.SOURCE_TYPES or output.dtype not in cpu.OUT_TYPES:
            raise UnsupportedColumnError(f"cannot be turned from {spec.dtype} into {output.dtype}", column=spec.name)
        row[cpu.KIND] = cpu.KIND_CONVERT
        row[cpu.ELEMENTS] = spec.size
        row[cpu.SOURCE_TYPE] = cpu.SOURCE_TYPES.index(source_type)
        row[cpu.OUT_TYPE] = cpu.OUT_TYPES.index(output.dtype)
        affine = np.empty((2, spec.size))
        affine[0] = 0.0 if output.mean is None else np.ravel(output.mean)
        affine[1] = 1.0 if output.scale is None else np.ravel(output.scale)
        row[cpu.AFFINE] = self._keep(affine)
        return row

    def _template(self, output: Output, step: Any) -> int:
        """Address of `width` copies of a step; 0 stands for zero bytes."""
        rows = np.empty((output.width, *output.shape), output.dtype)
        rows[:] = np.asarray(step).astype(output.dtype)
        if not rows.view(np.uint8).any():
            return 0
        return self._keep(rows)

    def _keep(self, array: npt.NDArray[Any]) -> int:
        self._templates.append(array)
        return int(array.ctypes.data)

    def collect(self, windows: Windows) -> Collected:
        """One batch, a row a window."""
        buffer = self._pool.lease()
        places = Places(self._plan, self._offsets + buffer.__array_interface__["data"][0])
        valid_bytes = self._reader.read(windows, places)
        rows = len(windows)
        arrays = {key: np.ndarray((rows, *shape), dtype, buffer, offset) for key, shape, dtype, offset in self._layout}
        return Collected(arrays, rows * self._row_bytes, valid_bytes)
