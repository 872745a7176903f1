"""Addresses in a batch to which RDMA writes rows directly.

Only rows that an output copies unchanged are written directly. Other rows pass through a buffer.
"""

from __future__ import annotations

import numpy as np

from gear_data.collection.reader import OutputBuffers
from gear_data.kernels.output_plan import COLUMN_KINDS, KIND_COPY, OutputPlanArray
from gear_data.selection.windows import Int64Array, Windows


def direct_output(plan: OutputPlanArray, column: int) -> int | None:
    """Returns the output that copies a column row for row.

    Returns None if another output reads the column, or none does.
    """
    outputs = np.flatnonzero(np.isin(plan["kind"], COLUMN_KINDS) & (plan["column"] == column))
    if len(outputs) != 1:
        return None
    output = plan[outputs[0]]
    # A shifted output is not one range of rows: one of its rows is a final observation, or a fill.
    return int(outputs[0]) if output["kind"] == KIND_COPY and not output["shift"] and not output["hops"] else None


def row_targets(
    buffers: OutputBuffers, output: int, windows: Windows, low: Int64Array, count: Int64Array
) -> Int64Array:
    """Returns int64 [B], the address of each window's first valid row.

    The output must not be shifted.

    Args:
        buffers: the batch's output buffers.
        output: position of the output in the plan.
        windows: B windows.
        low, count: int64 [B], the first row of its episode that each window reads, and the number of rows.
    """
    first, width, pad_left, row_bytes = buffers.plan[["first", "width", "pad_left", "out_bytes"]][output].tolist()
    padding = width - count if pad_left else low - (windows.start + first)
    rows = buffers.row_of_window if len(buffers.row_of_window) else np.arange(len(windows))
    targets: Int64Array = buffers.addresses[output] + (rows * width + padding) * row_bytes
    return targets
