"""DeviceWindowSampler: draws the windows of a selector on a device, bit for bit."""

from __future__ import annotations

import numpy as np

from gear_data.collection.buffers import ALIGNMENT
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.residency.device.memory import PIECE_BYTES, DeviceBuffer, Uploader
from gear_data.selection.samplers.fifo_shuffle import Permuted
from gear_data.selection.window_sampler import SamplingPlan


class DeviceWindowSampler:
    """Draws by a `SamplingPlan`. The plan's tables are copied to the current device.

    Args:
        plan: the selector's plan.
        slots: slots of a batch.

    Attributes:
        rows: rows of a draw: episodes, first steps, lengths, and with 4 rows probabilities.
        work: numbers of working memory for each batch of a draw.
    """

    def __init__(self, plan: SamplingPlan, slots: int) -> None:
        self.plan = plan
        self._sampler = plan.sampler
        self.rows = plan.sampler.rows
        self._order: launches.EpochOrder | None = None
        if plan.order is not None:
            seed = plan.order.seed if isinstance(plan.order, Permuted) else None
            self._order = launches.EpochOrder(plan.total, seed)
        self.work = launches.distinct_words(slots) if self._sampler.distinct else 0
        # Fields may share an array, which is uploaded once.
        arrays = {array.ctypes.data: array for array in self._sampler.arrays.values()}
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays.values()]
        plan_bytes = self._sampler.plan_at({}).nbytes
        self._memory = DeviceBuffer(sum(sizes) + plan_bytes)
        places = (self._memory.address + np.cumsum([0, *sizes])).tolist()
        at = dict(zip(arrays, places, strict=False))
        self._plan = places[-1]
        kernel_plan = self._sampler.plan_at({field: at[a.ctypes.data] for field, a in self._sampler.arrays.items()})
        uploader = Uploader(min(PIECE_BYTES, max(plan_bytes, *sizes)))
        for address, array in arrays.items():
            uploader.send(array, at[address])
        uploader.send(kernel_plan, self._plan)
        uploader.finish()

    def draw(
        self, launcher: launches.Launcher, slots: launches.Slots, position: int, out: int, counting: launches.Counting
    ) -> int:
        """Draws windows. Returns the number of sums of a batch that `counting` receives.

        Args:
            launcher: launches the kernel.
            slots: the windows' slots.
            position: slots before the first batch.
            out: address of int64 [rows, batches, count], followed by the batches' working memory.
            counting: what the kernel counts.
        """
        plan, rows = self._plan, self.rows
        if self._order is not None:
            return launches.draw_in_order(launcher, plan, slots, out, position, self._order, counting)
        if self._sampler.distinct:
            work = out + 8 * rows * slots.batches * slots.count
            return launches.draw_distinct_windows(launcher, plan, slots, out, rows, work, counting)
        return launches.draw_windows(launcher, plan, slots, out, rows, counting)
