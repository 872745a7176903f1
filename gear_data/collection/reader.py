"""ColumnReader: the interface between a batch and the columns' memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.kernels.output_plan import OutputPlanArray
from gear_data.selection.windows import Int64Array, Windows


@dataclass(slots=True)  # not frozen: see Windows
class OutputBuffers:
    """The memory that a reader fills, and the plan it follows.

    See `gear_data.kernels.cpu.collect.collect`.

    Attributes:
        plan: OUTPUT_PLAN [outputs], see `gear_data.kernels.output_plan`.
        addresses: int64 [outputs].
        rows: int64 [B], the output row of each window; empty: window b goes to row b.
        per: windows of one batch, if the read fills several batches.
        valid: int64 [batches], filled with each batch's bytes of valid steps.
        memory: the whole buffer that holds the outputs, if other batches use it again; else None.
    """

    plan: OutputPlanArray
    addresses: Int64Array
    rows: Int64Array
    per: int
    valid: Int64Array
    memory: npt.NDArray[np.uint8] | None = None


class ColumnReader(Protocol):
    """Reads windows of columns, from this process's memory or from another node."""

    def read(self, windows: Windows, buffers: OutputBuffers) -> None:
        """Fills the buffers with the windows' steps."""

    def final_address(self, column: str) -> int:
        """Returns the address of a column's final observations, or 0 if it has none.

        The address stays valid as long as the reader lives.
        """

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        """Reads a column of variable length, given by its index in the schema.

        Returns:
            One chunk of valid steps for each window. A reader may put several windows into one chunk.

        Raises:
            CorruptShardError: damaged values.
        """
