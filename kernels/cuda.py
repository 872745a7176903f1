"""What the CUDA kernels (`*.cu` beside this file) need to know of a batch; nothing here needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.kernels import cpu

#: Bytes of an output's window that a warp of `gear_collect` takes at a time, and of a line of memory.
PIECE_BYTES = 8192
LINE_BYTES = 128


@dataclass(frozen=True)
class PlanBuffer:
    """Memory that a plan points to.

    Attributes:
        row, field: where in the plan its address is.
        address, nbytes: which bytes of this process.
    """

    row: int
    field: int
    address: int
    nbytes: int


def plan_buffers(plan: npt.NDArray[np.int64]) -> Iterator[PlanBuffer]:
    """What a plan of `gear_data.kernels.cpu.collect` points to, final observations left out: to be copied to where the
    device can read it, and its address put in the plan."""
    for number, row in enumerate(plan.tolist()):
        template = row[cpu.WIDTH] * row[cpu.OUT_BYTES]
        sizes = {
            cpu.FILL: template,
            cpu.VALID: template,
            cpu.AFFINE: 2 * 8 * row[cpu.AFFINE_ROWS] * row[cpu.ELEMENTS],
            cpu.DISCOUNTS: 8 * row[cpu.HORIZON],
        }
        for field, nbytes in sizes.items():
            if row[field]:
                yield PlanBuffer(number, field, row[field], nbytes)


def piece_counts(plan: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [outputs + 1]: pieces of a window before each output, as `gear_collect` takes them."""
    # Pieces begin where a line of the source does, so a window may begin up to a line inside its first.
    sizes = plan[:, cpu.WIDTH] * plan[:, cpu.OUT_BYTES] + LINE_BYTES - 1
    out = np.zeros(len(plan) + 1, np.int64)
    np.cumsum(-(-sizes // PIECE_BYTES), out=out[1:])
    return out
