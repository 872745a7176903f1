"""Batches that the CPU collects in pinned memory, and their copies to a GPU."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.errors import DeviceError, HostMemoryError
from gear_data.loaders.builders.batch import Batch
from gear_data.loaders.frameworks.torch_tensors import to_device
from gear_data.loaders.video.planar_frames import PlanarFrames
from gear_data.residency.device.buffers import wait_before_free

if TYPE_CHECKING:
    from gear_data.loaders.video.frame_converter import FrameConverter


def pinned_memory(size: int) -> npt.NDArray[np.uint8]:
    """Returns new pinned memory, uint8 [size].

    Raises:
        HostMemoryError: this machine cannot pin as much memory.
        DeviceError: CUDA fails for another reason.
    """
    try:
        memory: npt.NDArray[np.uint8] = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if "out of memory" not in reason:
            raise DeviceError(
                f"memory for batches is not pinned: {reason}",
                hint="a forked child cannot use CUDA if its parent does: start processes by spawn; otherwise run "
                "`gear-data doctor`",
            ) from error
        raise HostMemoryError(
            f"{size:,} bytes of pinned memory are needed for batches: {reason}",
            hint="give a smaller batch_size or prefetch, or ExecutionOptions(pin_memory=False)",
        ) from error
    return memory


class PinnedDelivery:
    """Copies batches from pinned memory to a device, in the consumer's current stream.

    torch copies a tensor that is pinned already without another copy on the CPU. torch does not know that the memory
    belongs to a pool, which would use the memory again when the last tensor over it is gone. So this object keeps the
    tensors until their copies have ended.

    Args:
        device: a CUDA device.
        convert: makes the arrays of cameras that come as `PlanarFrames`; None: no camera does.
    """

    def __init__(self, device: torch.device, convert: FrameConverter | None = None) -> None:
        self._device, self._convert = device, convert
        self._process = os.getpid()
        self._copies: deque[tuple[torch.cuda.Event, Batch]] = deque()

    def __call__(self, batch: Batch) -> Batch:
        """Starts the copy of a batch.

        Tensors that are not pinned, such as decoded images, are pinned first.
        """
        self._drop_copied()
        copied = to_device(batch, self._device, pin=True)
        if self._convert is not None:
            for key, value in batch.items():
                if isinstance(value, PlanarFrames):
                    memory = torch.from_numpy(value.memory).pin_memory()
                    copied[key] = self._convert(value, memory.to(device=self._device, non_blocking=True))
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._copies.append((event, batch))
        return copied

    def _drop_copied(self) -> None:
        # `loader.batch` may be called by several threads: each takes an entry out before it looks at the event.
        while self._copies:
            try:
                oldest = self._copies.popleft()
            except IndexError:
                return
            if not oldest[0].query():  # type: ignore[no-untyped-call]
                self._copies.appendleft(oldest)
                return

    def _finish(self) -> None:
        for event, _ in self._copies:
            event.synchronize()

    def __del__(self, wait: Callable[[Any, int], None] = wait_before_free) -> None:
        wait(self._finish, self._process)
