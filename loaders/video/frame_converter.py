"""FrameConverter: makes the arrays of cameras from YUV, on a GPU."""

from __future__ import annotations

import numpy as np
import torch

from gear_data.collection.output import CHANNELS_FIRST
from gear_data.common.extras import import_extra
from gear_data.kernels.cuda.frames import FrameArguments, convert_frames
from gear_data.kernels.cuda.launcher import CudaLauncher
from gear_data.loaders.frameworks.torch_tensors import to_tensors
from gear_data.loaders.video.planar_frames import PlanarFrames
from gear_data.residency.device.stream import batch_memory


class FrameConverter:
    """Makes the arrays of cameras on a CUDA device, in torch's current stream.

    Args:
        device: the device.
        number: its number.
        sm_budget: see `CudaLauncher`.

    Raises:
        InvalidArgumentError, MissingExtraError, DeviceError: see `CudaLauncher`.
    """

    def __init__(self, device: torch.device, number: int, sm_budget: float) -> None:
        self._launcher = CudaLauncher(number, sm_budget)
        self._device, self._number = device, number
        self._cuda = import_extra("cupy", "gpu").cuda

    def __call__(self, frames: PlanarFrames, uploaded: torch.Tensor) -> torch.Tensor:
        """Returns the array of a camera, [B, ...] as the output of the camera says.

        Args:
            frames: the camera.
            uploaded: its memory on the device. The current stream may still copy it.

        Raises:
            DeviceMemoryError: the device has too little memory.
        """
        output, address = frames.output, uploaded.data_ptr()
        memory = batch_memory(frames.rows * output.row_bytes, self._device)
        arguments = FrameArguments(
            address + frames.planes_at, frames.slot_bytes, address + frames.records_at, frames.rows * output.width,
            *frames.size, frames.fill_bits,
        )  # fmt: skip
        table = address if output.camera == CHANNELS_FIRST else None
        stream = torch.cuda.current_stream(self._device).cuda_stream
        # CuPy has a current stream for each device.
        with self._cuda.Device(self._number), self._cuda.ExternalStream(stream):
            convert_frames(self._launcher, memory.data_ptr(), arguments, table, output.array_dtype.itemsize)
        dtype = to_tensors({"": np.empty(0, output.array_dtype)})[""].dtype
        return memory.view(dtype).view(frames.rows, *output.array_shape)
