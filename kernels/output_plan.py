"""The plan of the collecting kernels: one record for each output.

The Numba kernel (`gear_data.kernels.cpu.collect`) and the CUDA kernel (`cuda/collect.cu`, `struct OutputPlan`) read the
same records. This module needs neither Numba nor CuPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Kinds of output: the bytes that a valid row gets.
KIND_COPY = 0  # the column's bytes
KIND_CONVERT = 1  # (value - mean) * scale of every element, computed in float64
KIND_TIMESTEP = 2  # the step's index in its episode, plus `origin` (the step number)
KIND_CONSTANT = 3  # the template at `valid` (masks)
KIND_DISCOUNTED = 4  # the sum over j of discounts[j] * the value j steps later, up to the episode's end
KIND_HOP = 5  # a row of the table at `valid`, chosen by the hop from the step to its n-th next step, see `hops`

#: Kinds that read a column.
COLUMN_KINDS = (KIND_COPY, KIND_CONVERT, KIND_DISCOUNTED, KIND_HOP)

#: Kinds of padding: the bytes that the other rows get, in the order of `gear_data.collection.output.Padding`. A window
#: without a valid row is filled with PAD_FILL.
PAD_FILL = 0  # the template at `fill`
PAD_EDGE = 1  # a copy of the nearest valid row
PAD_FIRST = 2  # a copy of the first valid row
PAD_EXTRAPOLATE = 3  # KIND_TIMESTEP only: the step numbers continue

#: `source_type` is an index in SOURCE_TYPES. `out_type` is an index in OUT_TYPES; for KIND_TIMESTEP, in TIMESTEP_TYPES.
SOURCE_TYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64",
    "float16",
)  # fmt: skip
OUT_TYPES = ("float32", "float64", "float16", "bfloat16")
TIMESTEP_TYPES = ("int64", "int32", "float32", "float64")

_FIELDS = (
    "kind",  # KIND_...
    "column",  # index of the source column
    "source_bytes",  # bytes of a source row
    "out_bytes",  # bytes of an output row
    "elements",  # elements of a row, for KIND_CONVERT and KIND_DISCOUNTED
    "source_type",
    "out_type",
    "first",  # first step to read, relative to the window's start
    "width",  # rows of the output
    "pad_left",  # 1: valid rows are at the end; 0: the row of step `first` + i is row i
    "within",  # 1: steps outside the window are padding; 0: only steps outside the episode are
    "padding",  # PAD_...
    "fill",  # address of `width` padding rows; 0: zero bytes
    "valid",  # address of `width` valid rows, for KIND_CONSTANT; for KIND_HOP of rows [2, hops + 1], by (ended, hop)
    "affine",  # address of float64 mean[affine_rows * elements], followed by as many scales
    "affine_rows",  # rows for which means and scales are repeated, so that the loop over elements is long
    "origin",  # number of an episode's first step, for KIND_TIMESTEP
    "shift",  # 1: a step gets the next step's row, the last step the final observation; -1: the previous step's row
    "finals",  # address of the column's final observations; 0: there are none
    "discounts",  # address of float64 discounts, for KIND_DISCOUNTED
    "horizon",  # number of discounts; for KIND_HOP, hops
    "hops",  # the most steps from a step to its next one, see `gear_data.kernels.cpu.transitions`; 0: see `shift`
    "ends",  # with hops: index of the column of flags (uint8) that end a hop
    "reach",  # with hops: 1: a final observation is a next step
    "packed",  # 0: window b fills row `row_of_window[b]`; 1: windows lie one after another, and window b begins at step
    # `row_of_window[b]`, counted over all rows; p > 1: it fills the row that has this step, where a row has p steps
    "write",  # on a CPU: address of the kernel that writes rows, see `convert.writer_of`; 0: they are copied
    "write_single",  # on a CPU: address of the kernel that writes all rows, see `transitions.single_writer_of`; 0: none
    "same_spans_as",  # index of the first output whose windows have the same steps in the same rows; may be its own
)
#: One record, every field int64. `struct OutputPlan` of `collect.cu` has the same fields in the same order.
OUTPUT_PLAN = np.dtype([(name, np.int64) for name in _FIELDS])

#: OUTPUT_PLAN [outputs].
OutputPlanArray = npt.NDArray[Any]
