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
import pyarrow as pa

from gear_data.collection.buffers import ALIGNMENT, BufferPool, pooled_memory
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array, Windows

#: Elements that means and scales are repeated for: 16 KiB of them, which stay in the cache.
_AFFINE_ELEMENTS = 1024
_NO_ROWS: Int64Array = np.empty(0, np.int64)
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
            episode has none, that row is padding.
        preceding: each step's row is that of the step before it, and of an episode's first step `fill`.
        about: MASK with `following`: the column whose final observations count.
        single: the array is [B, *shape], without the axis of steps; `width` is 1.
        discounts: output = sum over j of discounts[j] * value[t + j], as far as the episode goes; computed in float64.
            For n-step returns 1, gamma, ..., gamma^(n - 1).
        half: `float16` or `bfloat16`: what the float32 numbers are rounded to. bfloat16 comes as its bits, uint16.
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
    preceding: bool = False
    about: str | None = None
    single: bool = False
    discounts: tuple[float, ...] | None = None
    half: str | None = None

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        if self.half is None:
            return np.dtype(self.dtype)
        return np.dtype("float16" if self.half == "float16" else "uint16")

    @property
    def step_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.array_dtype.itemsize


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


@dataclass(slots=True)  # made for every batch: see Windows
class Places:
    """Where the outputs go, and how: see `gear_data.kernels.cpu.collect.collect`.

    Attributes:
        plan: int64 [outputs, PLAN_FIELDS].
        addresses: int64 [outputs].
        rows: int64 [B], the row of the output each window goes to; empty: window b to row b.
        per: windows of a batch, where there are several.
        valid: int64 [batches], filled with each batch's bytes of valid steps.
        memory: what the outputs are in, where it is used for other batches too.
    """

    plan: Int64Array
    addresses: Int64Array
    rows: Int64Array
    per: int
    valid: Int64Array
    memory: npt.NDArray[np.uint8] | None = None


class ColumnReader(Protocol):
    """Reads windows of columns to their places: from this process's memory, or another node's."""

    def read(self, windows: Windows, places: Places) -> None:
        """Fills the places."""

    def final_address(self, column: str) -> int:
        """Address of the column's final observations, which stay there as long as the reader; 0 if there are none."""

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        """A column of variable length, by its place in the schema: a chunk of valid steps for each of one window or
        more.

        Raises:
            CorruptShardError: damaged values.
        """


@dataclass(slots=True)  # made for every batch: see Windows
class Collected:
    """A batch: key -> array [B, width, *shape], and its sizes in bytes with and without padding."""

    arrays: Mapping[str, npt.NDArray[Any]]
    padded_bytes: int
    valid_bytes: int


@dataclass(frozen=True)
class Share:
    """What one dataset contributes: where its steps are, its columns, and the outputs made of them."""

    reader: ColumnReader
    schema: Schema
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Field:
    """One array of a batch in its buffer.

    Attributes:
        key: its name in the batch.
        shape: of a row.
        dtype: of its numbers; those of bfloat16 are uint16.
        offset: where in the buffer it begins.
        row_bytes: of a row.
    """

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    row_bytes: int


class BatchPlan:
    """How batches of given outputs are filled, and where in a buffer their arrays are.

    Args:
        shares: one a dataset. Their outputs have the same keys, widths, shapes and dtypes (`check_alike`).
        rows: windows of a full batch.
        batches: how many share a buffer, at most.

    Attributes:
        plans: int64 [outputs, PLAN_FIELDS] of each share, see `gear_data.kernels.cpu.collect`;
        they hold addresses of what
            lives as long as this.
        fields: an array of each output.
        size: bytes of a buffer.
        row_bytes: of a row of all arrays.

    Raises:
        InvalidArgumentError: a batch would be too large.
        UnsupportedColumnError: an output that cannot be computed from its column.
    """

    def __init__(self, shares: Sequence[Share], rows: int, batches: int = 1) -> None:
        outputs = shares[0].outputs
        check_batch_bytes(outputs, rows)
        # Templates the plans point to.
        self._templates: list[npt.NDArray[Any]] = []
        self.plans = [self._plan(share) for share in shares]
        row_bytes = [output.width * output.step_bytes for output in outputs]
        padded = -(-batches * rows * np.array(row_bytes, np.int64) // ALIGNMENT) * ALIGNMENT
        self.offsets: Int64Array = np.cumsum(padded) - padded
        self.size = max(1, int(padded.sum()))
        self.row_bytes = sum(row_bytes)
        self.fields = [
            Field(o.key, o.shape if o.single else (o.width, *o.shape), o.array_dtype, offset, size)
            for o, offset, size in zip(outputs, self.offsets.tolist(), row_bytes, strict=True)
        ]

    def _plan(self, share: Share) -> Int64Array:
        """int64 [outputs, PLAN_FIELDS]."""
        from gear_data.kernels.cpu import collect as cpu

        plan = np.array([self._plan_row(output, share) for output in share.outputs], np.int64)
        plan = plan.reshape(-1, cpu.PLAN_FIELDS)
        alike: dict[tuple[int, ...], int] = {}
        for number, row in enumerate(plan):
            key = tuple(row[[cpu.FIRST, cpu.WIDTH, cpu.PAD_LEFT, cpu.WITHIN, cpu.SHIFT]].tolist())
            row[cpu.LIKE] = alike.setdefault((*key, int(row[cpu.FINALS] != 0)), number)
        return plan

    def _plan_row(self, output: Output, share: Share) -> list[int]:
        from gear_data.kernels.cpu import collect as cpu

        row = [0] * cpu.PLAN_FIELDS
        row[cpu.OUT_BYTES] = output.step_bytes
        row[cpu.FIRST], row[cpu.WIDTH], row[cpu.PAD_LEFT] = output.first, output.width, int(output.pad_left)
        row[cpu.WITHIN], row[cpu.SHIFT] = int(output.within_window), int(output.following) - int(output.preceding)
        row[cpu.PADDING] = tuple(Padding).index(output.padding)
        row[cpu.FILL] = self._template(output, output.fill)
        followed = output.source if output.column else output.about
        if output.following and followed is not None:
            row[cpu.FINALS] = share.reader.final_address(followed)
        if not output.column:
            if output.source == TIMESTEPS:
                row[cpu.KIND], row[cpu.ORIGIN] = cpu.KIND_TIMESTEP, output.origin
                row[cpu.OUT_TYPE] = cpu.TIMESTEP_TYPES.index(output.dtype)
            else:
                row[cpu.KIND] = cpu.KIND_CONSTANT
                row[cpu.VALID] = self._template(output, output.valid, constant=True)
            return row
        spec = share.schema[output.source]
        row[cpu.COLUMN] = share.schema.index(output.source)
        row[cpu.SOURCE_BYTES] = spec.row_bytes
        as_it_is = output.mean is None and output.discounts is None and output.half is None
        if as_it_is and np.dtype(output.dtype) == spec.numpy_dtype:
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
        # Repeated for several rows: the kernel's loop over elements is then long enough for vector instructions.
        repeats = max(1, min(output.width, _AFFINE_ELEMENTS // spec.size))
        affine = np.empty((2, repeats, spec.size))
        affine[0] = 0.0 if output.mean is None else np.ravel(output.mean)
        affine[1] = 1.0 if output.scale is None else np.ravel(output.scale)
        row[cpu.AFFINE], row[cpu.AFFINE_ROWS] = self._keep(affine), repeats
        return row

    def _template(self, output: Output, step: Any, *, constant: bool = False) -> int:
        """Address of `width` copies of a step; 0 stands for zero bytes, unless it is a `constant` to copy."""
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
        self._templates.append(array)
        return int(array.ctypes.data)


def _bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 of finite numbers, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Collector:
    """Fills batches of given outputs.

    Args:
        shares, rows, batches: see `BatchPlan`; shorter batches are fine.
        reuse: see `BufferPool`.

    Raises:
        whatever a `BatchPlan` raises.
    """

    def __init__(self, shares: Sequence[Share], rows: int, *, batches: int = 1, reuse: bool) -> None:
        self._readers = [share.reader for share in shares]
        self._plan = BatchPlan(shares, rows, batches)
        self._pool = BufferPool(self._plan.size, self._plan.offsets, reuse=reuse)

    def collect(self, windows: Windows, batches: int = 1) -> list[Collected]:
        """So many batches of the first dataset's windows, a row a window.

        Args:
            windows: of all batches, one after the other, equally many of each.
            batches: how many. Batches collected in one call share a buffer, which is used again when all of them are
                gone.
        """
        rows = len(windows) // batches
        buffer, addresses = self._pool.lease()
        memory = pooled_memory(buffer)
        valid = np.empty(batches, np.int64)
        self._readers[0].read(windows, Places(self._plan.plans[0], addresses, _NO_ROWS, max(1, rows), valid, memory))
        return [
            self._batch(buffer, number * rows, rows, valid_bytes) for number, valid_bytes in enumerate(valid.tolist())
        ]

    def collect_joined(self, windows: Windows, source: Int64Array) -> Collected:
        """One batch whose row i is window i, of the dataset number source[i] (int64 [B])."""
        buffer, addresses = self._pool.lease()
        memory = pooled_memory(buffer)
        total = 0
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            valid = np.empty(1, np.int64)
            places = Places(self._plan.plans[number], addresses, rows, len(rows), valid, memory)
            self._readers[number].read(windows[rows], places)
            total += int(valid[0])
        return self._batch(buffer, 0, len(windows), total)

    def _batch(self, buffer: npt.NDArray[np.uint8], first: int, rows: int, valid_bytes: int) -> Collected:
        arrays = {
            field.key: np.ndarray((rows, *field.shape), field.dtype, buffer, field.offset + first * field.row_bytes)
            for field in self._plan.fields
        }
        return Collected(arrays, rows * self._plan.row_bytes, valid_bytes)


def check_alike(outputs: Sequence[Output], others: Sequence[Output]) -> None:
    """Raises InvalidArgumentError where batches of two datasets cannot be one."""
    mine, theirs = (
        {o.key: (o.width, o.shape, o.half or o.dtype, o.single) for o in each} for each in (outputs, others)
    )
    for key in {**mine, **theirs}:
        if mine.get(key) != theirs.get(key):
            raise InvalidArgumentError(
                f"the datasets' batches differ in '{key}': (steps, shape, dtype, single) are {mine.get(key)} "
                f"and {theirs.get(key)}",
                hint="choose common columns, or batches of one dataset each",
            )
