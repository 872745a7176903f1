"""Where in a batch the rows of a column go that are copied as they are."""

from __future__ import annotations

import numpy as np

from gear_data.collection.reader import OutputBuffers
from gear_data.kernels.output_plan import COLUMN_KINDS, KIND_COPY, OutputPlanArray
from gear_data.selection.windows import Int64Array, Windows


def copied_to(plan: OutputPlanArray, column: int) -> int | None:
    """The output that is a plain copy of a column, row for row; None where there is another, or none."""
    outputs = np.flatnonzero(np.isin(plan["kind"], COLUMN_KINDS) & (plan["column"] == column))
    if len(outputs) != 1:
        return None
    output = plan[outputs[0]]
    # Shifted rows do not stand beside each other: one of them is a final observation, or a fill.
    return int(outputs[0]) if output["kind"] == KIND_COPY and not output["shift"] else None


def target_rows(places: OutputBuffers, output: int, windows: Windows, low: Int64Array, count: Int64Array) -> Int64Array:
    """int64 [B]: the address of each window's first valid row in an output that is not shifted.

    Args:
        low, count: int64 [B]: the first row of the episode that it reads, and how many.
    """
    first, width, pad_left, row_bytes = places.plan[["first", "width", "pad_left", "out_bytes"]][output].tolist()
    head = width - count if pad_left else low - (windows.start + first)
    rows = places.rows if len(places.rows) else np.arange(len(windows))
    found: Int64Array = places.addresses[output] + (rows * width + head) * row_bytes
    return found
