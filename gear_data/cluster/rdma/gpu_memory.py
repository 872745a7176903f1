"""GPU memory that READs write to (NVIDIA's GPUDirect RDMA).

Rows do not pass through host memory.

There are two methods. Peer memory: a kernel module of the driver makes GPU memory registrable by its address, like host
memory. DMA-BUF, since Linux 5.12 and CUDA 11.7: the driver returns a file that represents the memory, and the file is
registered.

A kernel sees the written bytes if it is launched after the READ's completion was taken. All kernels here are.

This module follows the documentation of both methods, and was tested only with stand-ins: it has never run on a
machine that has both a GPU and an RDMA device.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from gear_data.cluster.rdma.device import Device, Region
from gear_data.cluster.rdma.pyverbs_library import load_library, verbs_errors
from gear_data.errors import DeviceError
from gear_data.kernels.cuda.driver_library import open_driver
from gear_data.residency.device.columns import current_device

PEER_MEMORY, DMA_BUF = "peer memory", "DMA-BUF"
#: The kernel module: its present name, and its former name.
_MODULES = Path("/sys/module/nvidia_peermem"), Path("/sys/module/nv_peer_mem")
#: Constants of <cuda.h>: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED and CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
_DMA_BUF_SUPPORTED, _DMA_BUF_FD = 124, 1
#: Hint of errors without a method.
HINT = "load the driver's module: modprobe nvidia-peermem; or use a kernel, driver and rdma-core with DMA-BUF"


def gpu_transfer_method(number: int) -> str | None:
    """Returns how an RDMA device writes to the memory of a CUDA device.

    Args:
        number: number of the CUDA device.

    Returns:
        `PEER_MEMORY`, `DMA_BUF`, or None if neither is available.

    Raises:
        MissingExtraError: pyverbs is not installed.
    """
    if any(module.exists() for module in _MODULES):
        return PEER_MEMORY
    return DMA_BUF if hasattr(load_library().mr, "DmaBufMR") and _supports_dma_buf(number) else None


def register_gpu_memory(device: Device, address: int, size: int, access: int) -> Region:
    """Registers memory of the current CUDA device.

    Args:
        device: the RDMA device.
        address, size: the memory: whole pages of the GPU.
        access: `enum ibv_access_flags`.

    Raises:
        DeviceError: the memory cannot be registered.
    """
    method = gpu_transfer_method(current_device())
    if method == PEER_MEMORY:
        return Region(device.register(address, size, access))
    action = f"registering {size:,} bytes of GPU memory with {device.port.device}"
    if method is None:
        raise DeviceError(f"{action} failed: this machine has neither peer memory nor DMA-BUF", hint=HINT)
    file = ctypes.c_int(-1)
    status = open_driver().cuMemGetHandleForAddressRange(
        ctypes.byref(file), ctypes.c_uint64(address), ctypes.c_size_t(size), _DMA_BUF_FD, ctypes.c_uint64(0)
    )
    if status:
        raise DeviceError(f"{action} failed: CUDA returned no DMA-BUF (CUresult {status})", hint=HINT)
    try:
        with verbs_errors(action, HINT):
            # Addresses in such a region of pyverbs start at 0, the start of the file.
            return Region(device.library.mr.DmaBufMR(device.domain, size, access, dmabuf=file.value), -address)
    finally:
        # The region keeps the memory.
        os.close(file.value)


def _supports_dma_buf(number: int) -> bool:
    try:
        driver = open_driver()
    except OSError:
        return False
    gpu, answer = ctypes.c_int(), ctypes.c_int()
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(gpu), number) == 0
        and driver.cuDeviceGetAttribute(ctypes.byref(answer), _DMA_BUF_SUPPORTED, gpu) == 0
        and answer.value == 1
    )
