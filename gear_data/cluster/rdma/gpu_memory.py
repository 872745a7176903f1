"""Memory of a GPU that READs write to (NVIDIA's GPUDirect RDMA): so rows do not go through this machine's memory.

There are two ways. Peer memory: a kernel module of the driver lets a GPU's memory be registered by its address, like
any other. DMA-BUF, from Linux 5.12 and CUDA 11.7 on: the driver gives a file that stands for it, which is registered.

A kernel sees what was written once it is launched after the READ's completion was taken, as all are here.

Written from the documentation of both and tried with stand-ins alone: never yet on a GPU beside an RDMA device.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from gear_data.cluster.rdma.device import Device, Region
from gear_data.cluster.rdma.library import load_library, verbs_errors
from gear_data.errors import DeviceError
from gear_data.residency.device.columns import current_device

PEER_MEMORY, DMA_BUF = "peer memory", "DMA-BUF"
#: The kernel module, by the name that the driver gives it and by that which it had before.
_MODULES = Path("/sys/module/nvidia_peermem"), Path("/sys/module/nv_peer_mem")
#: Of <cuda.h>: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED and CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
_DMA_BUF_SUPPORTED, _DMA_BUF_FD = 124, 1
#: What to do where there is no way.
HINT = "load the driver's module: modprobe nvidia-peermem; or use a kernel, driver and rdma-core with DMA-BUF"


def gpu_transfer_method(number: int) -> str | None:
    """How an RDMA device writes to the memory of a CUDA device, by its number: `PEER_MEMORY` or `DMA_BUF`; None: in no
    way that is known here. Raises MissingExtraError where there is no pyverbs."""
    if any(module.exists() for module in _MODULES):
        return PEER_MEMORY
    return DMA_BUF if hasattr(load_library().mr, "DmaBufMR") and _gives_dma_buf(number) else None


def register_gpu_memory(device: Device, address: int, size: int, access: int) -> Region:
    """Registers memory of the current CUDA device.

    Args:
        address, size: whole pages of the GPU.
        access: `enum ibv_access_flags`.

    Raises:
        DeviceError: it cannot be registered.
    """
    way = gpu_transfer_method(current_device())
    if way == PEER_MEMORY:
        return Region(device.register(address, size, access))
    doing = f"registering {size:,} bytes of GPU memory with {device.port.device}"
    if way is None:
        raise DeviceError(f"{doing} failed: there is no way to", hint=HINT)
    file = ctypes.c_int(-1)
    status = _driver().cuMemGetHandleForAddressRange(
        ctypes.byref(file), ctypes.c_uint64(address), ctypes.c_size_t(size), _DMA_BUF_FD, ctypes.c_uint64(0)
    )
    if status:
        raise DeviceError(f"{doing} failed: CUDA gives no DMA-BUF for it (CUresult {status})", hint=HINT)
    try:
        with verbs_errors(doing, HINT):
            # pyverbs has addresses of such a region begin where the file does.
            return Region(device.library.mr.DmaBufMR(device.domain, size, access, dmabuf=file.value), -address)
    finally:
        # The region holds the memory.
        os.close(file.value)


def _gives_dma_buf(number: int) -> bool:
    try:
        driver = _driver()
    except OSError:
        return False
    gpu, answer = ctypes.c_int(), ctypes.c_int()
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(gpu), number) == 0
        and driver.cuDeviceGetAttribute(ctypes.byref(answer), _DMA_BUF_SUPPORTED, gpu) == 0
        and answer.value == 1
    )


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
