"""WindowCopies: rows of long windows that a copy engine copies, not a kernel."""

from __future__ import annotations

import numpy as np

from gear_data.kernels.cuda.batch_copy import Copies
from gear_data.kernels.output_plan import KIND_COPY, OutputPlanArray
from gear_data.selection.windows import Int64Array, Windows


class WindowCopies:
    """Finds the copies of windows' rows, for outputs with many bytes in a window.

    These outputs are plain copies of a column's rows at the windows' own steps. Kernels fill the padding.

    Args:
        plan: OUTPUT_PLAN [outputs].
        least: the fewest bytes of an output's window.

    Attributes:
        outputs: int64, indices of the outputs.
    """

    def __init__(self, plan: OutputPlanArray, least: int) -> None:
        plain = (plan["kind"] == KIND_COPY) & (plan["shift"] == 0) & (plan["hops"] == 0)
        self.outputs = np.flatnonzero(plain & (plan["width"] * plan["out_bytes"] >= least))
        self._plan = plan

    def find(
        self, windows: Windows, total: Int64Array, bases: Int64Array, addresses: Int64Array, rows: Int64Array,
        arrays: Int64Array,
    ) -> Copies:  # fmt: skip
        """Finds the copies of windows.

        Args:
            windows: [B].
            total, bases: int64 [B], steps of the windows' episodes, and the rows before the episodes at `addresses`.
            addresses: int64 [B, columns], the addresses of the columns that hold the episodes.
            rows: int64 [B], the row that each window fills.
            arrays: int64 [outputs], addresses of the outputs' arrays.
        """
        targets, sources, sizes = [], [], []
        for index in self.outputs.tolist():
            output = self._plan[index]
            width, size = int(output["width"]), int(output["out_bytes"])
            wanted, within = windows.start + int(output["first"]), bool(output["within"])
            first = np.maximum(wanted, windows.start if within else 0)
            last = np.minimum(wanted + width, windows.start + windows.length if within else total)
            count = last - first
            head = width - count if output["pad_left"] else first - wanted
            some = np.flatnonzero(count > 0)
            targets.append((arrays[index] + (rows * width + head) * size)[some])
            sources.append((addresses[:, output["column"]] + (bases + first) * size)[some])
            sizes.append(count[some] * size)
        return Copies(np.concatenate(targets), np.concatenate(sources), np.concatenate(sizes))
