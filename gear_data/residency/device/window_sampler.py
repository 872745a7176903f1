"""Windows drawn on a device: those that a selector gives, bit for bit."""

from __future__ import annotations

import numpy as np

from gear_data.collection.buffers import ALIGNMENT
from gear_data.kernels.cuda import launches
from gear_data.residency.device.memory import PIECE_BYTES, DeviceBuffer, Uploader
from gear_data.selection.samplers.orders import Permuted
from gear_data.selection.window_sampler import SamplingPlan


class DeviceWindowSampler:
    """Draws by the plan of a selector; the tables that it draws from are copied to the current device.

    Args:
        plan: how the selector draws.
        count: slots of a batch.

    Attributes:
        count: slots of a batch.
        rows: of what is drawn: episodes, first steps, lengths, and where it is 4 probabilities.
        words: numbers of device memory that drawing a batch takes: `rows` times `count`, and what it works in.
    """

    def __init__(self, plan: SamplingPlan, count: int) -> None:
        self.plan = plan
        self._sampler, self.count = plan.sampler, count
        self.rows = plan.sampler.rows
        self.words = self.rows * count + (2 * launches.holders_size(count) if self._sampler.distinct else 0)
        # Fields may share an array.
        arrays = {array.ctypes.data: array for array in self._sampler.arrays.values()}
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays.values()]
        plan_bytes = self._sampler.plan_at({}).nbytes
        self._memory = DeviceBuffer(sum(sizes) + plan_bytes)
        places = (self._memory.address + np.cumsum([0, *sizes])).tolist()
        at = dict(zip(arrays, places, strict=False))
        self._plan = places[-1]
        kernel_plan = self._sampler.plan_at({field: at[a.ctypes.data] for field, a in self._sampler.arrays.items()})
        sender = Uploader(min(PIECE_BYTES, max(plan_bytes, *sizes)))
        for address, array in arrays.items():
            sender.send(array, at[address])
        sender.send(kernel_plan, self._plan)
        sender.finish()

    def draw(self, launcher: launches.Launcher, step: int, position: int, out: int) -> None:
        """The windows of a batch `step`, whose first slot has `position` before it, to int64 [rows, count] at `out`."""
        count = self.count
        if self.plan.order is None:
            if self._sampler.distinct:
                table = out + 8 * self.rows * count
                launches.draw_distinct_windows(launcher, self._plan, step, out, count, self.rows, table)
            else:
                launches.draw_windows(launcher, self._plan, step, out, count, self.rows)
            return
        numbers = out + 8 * count
        for epoch, first, taken in self.plan.spans(position, count):
            if isinstance(self.plan.order, Permuted):
                seed, size = self.plan.order.seed, self.plan.order.size
                launches.permuted(launcher, seed, epoch, first, size, numbers, taken)
            else:
                launches.in_order(launcher, first, numbers, taken)
            numbers += 8 * taken
        launches.windows_of_points(launcher, self._plan, step, out, count)
