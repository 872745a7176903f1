"""BatchPlan: outputs as numbers for the kernels, and the layout of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.collection.joined import ArrayLayout, Joined, join_parts
from gear_data.collection.listed_steps import ListedSteps, TakenSteps
from gear_data.collection.output import TIMESTEPS, Output, Padding, check_batch_bytes
from gear_data.collection.reader import ColumnReader
from gear_data.collection.relative import RelativeArray, relative_array
from gear_data.errors import UnsupportedColumnError
from gear_data.kernels import cpu
from gear_data.kernels.output_plan import (
    KIND_CONSTANT,
    KIND_CONVERT,
    KIND_COPY,
    KIND_DISCOUNTED,
    KIND_HOP,
    KIND_TIMESTEP,
    OUT_TYPES,
    OUTPUT_PLAN,
    SOURCE_TYPES,
    TIMESTEP_TYPES,
    OutputPlanArray,
)
from gear_data.schema import ColumnSpec, Schema

#: Means and scales are repeated up to this many elements: 16 KiB, which stay in the cache.
_AFFINE_ELEMENTS = 1024


@dataclass(frozen=True)
class CollectSource:
    """One dataset from which batches are collected.

    Attributes:
        reader: reads the dataset's columns.
        schema: the columns, in the dataset's order.
        outputs: the arrays that a kernel fills, before `masks`.
        joined: the arrays of a batch that are joined from several outputs. Each stands in the place of its parts.
        listed: number of an array -> the output of listed steps that stands in its place.
        masks: number of such an array -> the mask of the range of its steps, if they are interpolated.
        names: column -> its name in the dataset, if that is another one.
    """

    reader: ColumnReader
    schema: Schema
    outputs: tuple[Output, ...]
    joined: tuple[Joined, ...] = ()
    listed: Mapping[int, Output] = field(default_factory=dict)
    masks: Mapping[int, Output] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def final_address(self, column: str) -> int:
        """Returns the address of a column's final observations: see `ColumnReader`."""
        return self.reader.final_address(self.names.get(column, column))

    @property
    def arrays(self) -> list[Output]:
        """The arrays of a batch before steps are listed: `outputs`, with joined arrays in the place of their parts."""
        found = list(self.outputs)
        for each in reversed(self.joined):
            found[each.first : each.first + each.count] = [each.output]
        return found


class _Buffer:
    """Places arrays one after another in a buffer.

    Args:
        rows: rows of each array.

    Attributes:
        size: bytes of the arrays so far.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self.size = rows, 0

    def place(self, output: Output) -> ArrayLayout:
        """Returns the layout of an output's array, behind the arrays so far."""
        offset, row_bytes = self.size, output.row_bytes
        self.size += -(-self._rows * row_bytes // ALIGNMENT) * ALIGNMENT
        return ArrayLayout(output.key, output.array_shape, output.array_dtype, offset, row_bytes)


class BatchPlan:
    """The plan by which kernels fill batches, and the layout of a batch's buffer.

    The plan is made once for each iteration of a loader, so that a batch costs no work in Python for each output.

    Args:
        sources: one for each dataset. Their arrays have the same keys, widths, shapes and dtypes (`check_alike`). They
            may be joined from different parts.
        rows: rows of a full batch.
        batches: the most batches that share a buffer.
        pack: steps of a row that holds several windows; 0: each window is a row.

    Attributes:
        plans: OUTPUT_PLAN [outputs] for each source, see `gear_data.kernels.output_plan`. They hold addresses of arrays
            that live as long as this plan.
        arrays: the layout of each array of a batch.
        joins: for each source, JOIN_PART [parts] of the arrays that are joined: see `gear_data.kernels.cpu.gather`.
        relatives: for each source, its relative arrays.
        lists: for each source, the arrays whose steps are listed.
        offsets: for each source, int64 [outputs], the first byte of the array of each output in a buffer.
        size: bytes of a buffer.
        row_bytes: for each source, bytes of one row, summed over all arrays; of relative arrays, over their parts.

    Raises:
        InvalidArgumentError: a batch would have more than 1 TiB.
        UnsupportedColumnError: an output cannot be computed from its column.
    """

    def __init__(self, sources: Sequence[CollectSource], rows: int, batches: int = 1, pack: int = 0) -> None:
        check_batch_bytes(sources[0].arrays, rows)
        self._pack = pack
        # Arrays to which the plans point, by their bytes: sources whose outputs are alike have equal records.
        self._templates: dict[bytes, npt.NDArray[Any]] = {}
        self.plans = [self._plan(source) for source in sources]
        buffer = _Buffer(batches * rows)
        of_batch = [sources[0].listed.get(number, output) for number, output in enumerate(sources[0].arrays)]
        self.arrays = [buffer.place(output) for output in of_batch]
        self.offsets, self.joins, self.relatives = [], list[npt.NDArray[Any]](), list[list[RelativeArray]]()
        self.lists, self.row_bytes = list[ListedSteps](), list[int]()
        # The rows of a source are joined before the next source is read, so the parts of all sources share memory.
        first = self.size = max(1, buffer.size)
        for source in sources:
            buffer.size = first
            layouts, joins = list(self.arrays), [np.zeros(0, cpu.gather.JOIN_PART)]
            for number, output in source.listed.items():
                layouts[number] = buffer.place(output.span)
            masks = {number: buffer.place(output) for number, output in source.masks.items()}
            listed = [
                TakenSteps(output, layouts[number], self.arrays[number], masks.get(number), batches * rows)
                for number, output in source.listed.items()
            ]
            self.lists.append(ListedSteps(listed))
            row_bytes = sum(array.row_bytes for array in (*layouts, *masks.values()))
            relatives = list[RelativeArray]()
            for each in reversed(source.joined):
                outputs = source.outputs[each.first : each.first + each.count]
                parts = [buffer.place(output) for output in outputs]
                number = next(i for i, output in enumerate(source.arrays) if output is each.output)
                relative, whole = each.output.relative, layouts[number]
                if relative is None:
                    joins.append(join_parts(whole, parts, each.elements))
                else:
                    placed, plan = list(zip(outputs, parts, strict=True)), self._differences(each.output)
                    relatives.append(relative_array(relative, whole, each.output.step_bytes, placed, plan))
                    row_bytes += sum(part.row_bytes for part in parts) - whole.row_bytes
                layouts[number : number + 1] = parts
            layouts += masks.values()
            self.joins.append(np.concatenate(joins))
            self.relatives.append(relatives)
            self.row_bytes.append(row_bytes)
            self.offsets.append(np.array([layout.offset for layout in layouts], np.int64))
            self.size = max(self.size, buffer.size)

    def _plan(self, source: CollectSource) -> OutputPlanArray:
        """Returns OUTPUT_PLAN [outputs]."""
        outputs = (*source.outputs, *source.masks.values())
        plan = np.zeros(len(outputs), OUTPUT_PLAN)
        first_with_spans: dict[tuple[int, ...], int] = {}
        for index, (record, output) in enumerate(zip(plan, outputs, strict=True)):
            self._fill_steps(record, output, source)
            if output.absent:
                record["kind"], record["valid"] = KIND_CONSTANT, self._template(output, output.valid, constant=True)
            elif output.column:
                self._fill_column(record, output, source.schema)
            elif output.source == TIMESTEPS:
                record["kind"], record["origin"] = KIND_TIMESTEP, output.origin
                record["out_type"] = TIMESTEP_TYPES.index(output.dtype)
            else:
                record["kind"] = KIND_CONSTANT
                record["valid"] = self._template(output, output.valid, constant=True)
            located = record[["first", "width", "pad_left", "within", "shift", "hops"]].tolist()
            record["same_spans_as"] = first_with_spans.setdefault((*located, int(record["finals"] != 0)), index)
        return plan

    def _differences(self, output: Output) -> OutputPlanArray:
        """Returns OUTPUT_PLAN [1]: how differences in float64 become steps of an array, without the zeros behind it."""
        own, plan = output.without_zeros, np.zeros(1, OUTPUT_PLAN)
        record, size = plan[0], own.step_bytes // own.array_dtype.itemsize
        record["kind"], record["width"], record["out_bytes"] = KIND_CONVERT, own.width, own.step_bytes
        record["padding"], record["fill"] = tuple(Padding).index(own.padding), self._template(own, own.fill)
        record["source_type"], record["source_bytes"] = SOURCE_TYPES.index("float64"), 8 * size
        record["out_type"] = OUT_TYPES.index(own.half or own.dtype)
        record["elements"], record["affine_rows"] = size, own.width
        affine = np.empty((2, own.width, size))
        affine[0], affine[1] = (0.0 if own.mean is None else own.mean), (1.0 if own.scale is None else own.scale)
        record["affine"] = self._keep(affine)
        cpu.collect.link(plan)
        return plan

    def _fill_steps(self, record: Any, output: Output, source: CollectSource) -> None:
        """Fills the fields of every kind of output: the steps, and the padding."""
        record["out_bytes"] = output.step_bytes
        record["first"], record["width"], record["pad_left"] = output.first, output.width, output.pad_left
        record["within"], record["shift"] = output.within_window, output.shift
        if self._pack:
            # An array without the axis of steps has one value for a whole row.
            record["packed"] = self._pack if output.squeeze_time else 1
        record["padding"] = tuple(Padding).index(output.padding)
        record["fill"] = self._template(output, output.fill)
        final_column = output.source if output.column else output.mask_column
        if output.shift > 0 and final_column is not None:
            record["finals"] = source.final_address(final_column)
        if output.next_state is not None:
            record["hops"], record["ends"] = output.next_state.most, source.schema.index(output.next_state.ends)
            finals = output.next_state.finals
            record["reach"] = finals is not None and source.final_address(finals) != 0

    def _fill_column(self, record: Any, output: Output, schema: Schema) -> None:
        """Fills the fields of an output that reads a column.

        The kernel copies, converts, or sums the column with discounts.
        """
        spec = schema[output.source]
        record["column"] = schema.index(output.source)
        record["source_bytes"] = spec.row_bytes
        if output.table is not None:
            record["kind"], record["horizon"] = KIND_HOP, output.table.shape[1] - 1
            record["valid"] = self._keep(_rounded(output, np.asarray(output.table).astype(output.dtype)))
            return
        unchanged = output.mean is None and output.discounts is None and output.half is None
        if unchanged and np.dtype(output.dtype) == spec.numpy_dtype:
            record["kind"] = KIND_COPY
            return
        source_type = str(spec.storage_dtype)
        out_type = output.half or output.dtype
        if source_type not in SOURCE_TYPES or out_type not in OUT_TYPES:
            raise UnsupportedColumnError(
                f"cannot be converted from {spec.dtype} to {out_type}",
                column=spec.name,
                hint=f"choose one of the dtypes {', '.join(OUT_TYPES)}, or leave the column out",
            )
        record["elements"] = spec.size
        record["source_type"] = SOURCE_TYPES.index(source_type)
        record["out_type"] = OUT_TYPES.index(out_type)
        if output.discounts is not None:
            record["kind"] = KIND_DISCOUNTED
            record["discounts"] = self._keep(np.array(output.discounts, np.float64))
            record["horizon"] = len(output.discounts)
            return
        record["kind"] = KIND_CONVERT
        # The means and scales are repeated for several rows, so that the kernel's loop over elements is long. The
        # compiler then uses vector instructions.
        repeats = max(1, min(output.width, _AFFINE_ELEMENTS // spec.size))
        affine = np.empty((2, repeats, spec.size))
        affine[0] = 0.0 if output.mean is None else _of_elements(output.mean, spec)
        affine[1] = 1.0 if output.scale is None else _of_elements(output.scale, spec)
        record["affine"], record["affine_rows"] = self._keep(affine), repeats

    def _template(self, output: Output, step: Any, *, constant: bool = False) -> int:
        """Returns the address of `width` copies of a step.

        Returns 0 if all bytes are zero, unless the step is a `constant` that the kernel copies.
        """
        rows = np.empty((output.width, *output.shape), output.dtype)
        rows[:] = np.asarray(step).astype(output.dtype)
        rows = _rounded(output, rows)
        if not constant and not rows.view(np.uint8).any():
            return 0
        return self._keep(rows)

    def _keep(self, array: npt.NDArray[Any]) -> int:
        """Keeps an array alive, and returns its address, or that of an array with the same bytes."""
        return int(self._templates.setdefault(array.tobytes(), array).ctypes.data)


def _of_elements(values: npt.NDArray[np.float64], spec: ColumnSpec) -> npt.NDArray[np.float64]:
    """Returns [elements] or [1]: the numbers of a step's elements; an image may have one number for each channel."""
    return np.ravel(values if values.size in (1, spec.size) else np.broadcast_to(values, spec.shape))


def _rounded(output: Output, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns rows in the half precision of an output, if it has one."""
    if output.half is None:
        return rows
    if output.half == "float16":
        return rows.astype(np.float16)
    bits = np.empty(rows.shape, np.uint16)
    cpu.convert.round_to_bfloat16(rows.reshape(-1), bits.reshape(-1))
    return bits
