"""Memory of a device that several processes map.

It is made by CUDA's virtual memory management.

The driver counts the references to such memory: its mappings, handles and file descriptors, in all processes. It frees
the memory with the last one ("cuMemRelease" in CUDA's driver API), so no process depends on the one that allocated.
Memory of `cudaMalloc`, shared by `cudaIpcGetMemHandle`, is freed with the process that allocated: a read by another
process is then undefined.

CuPy does not have these functions, so the driver is called directly.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from contextlib import ExitStack, suppress
from functools import cache, partial
from typing import Any

from gear_data.common.extras import import_extra
from gear_data.errors import DeviceError, DeviceMemoryError
from gear_data.kernels.cuda.driver_library import open_driver
from gear_data.kernels.cuda.launcher import cuda_errors

_OUT_OF_MEMORY = 2
#: Of CUdevice_attribute: virtual memory management, and its export as file descriptors.
_ATTRIBUTES = (102, 103)
#: CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
#: CU_MEM_ALLOC_GRANULARITY_RECOMMENDED and CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
_PINNED, _FILE_DESCRIPTOR, _ON_DEVICE, _RECOMMENDED, _READ_WRITE = 1, 1, 1, 1, 3


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location), ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]  # fmt: skip


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


_Number, _Size, _Pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
#: The types of the functions' arguments. A handle and an address on the device have 64 bits.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuDeviceGet": (_Pointer, ctypes.c_int),
    "cuDeviceGetAttribute": (_Pointer, ctypes.c_int, ctypes.c_int),
    "cuDeviceGetUuid_v2": (_Pointer, ctypes.c_int),
    "cuMemGetAllocationGranularity": (_Pointer, _Pointer, ctypes.c_int),
    "cuMemCreate": (_Pointer, _Size, _Pointer, _Number),
    "cuMemExportToShareableHandle": (_Pointer, _Number, ctypes.c_int, _Number),
    "cuMemImportFromShareableHandle": (_Pointer, _Pointer, ctypes.c_int),
    "cuMemAddressReserve": (_Pointer, _Size, _Size, _Number, _Number),
    "cuMemMap": (_Number, _Size, _Size, _Number, _Number),
    "cuMemSetAccess": (_Number, _Size, _Pointer, _Size),
    "cuMemUnmap": (_Number, _Size),
    "cuMemAddressFree": (_Number, _Size),
    "cuMemRelease": (_Number,),
}


def load_driver(library: str = "libcuda.so.1") -> ctypes.CDLL | None:
    """Returns the driver's library, or None without one that has these functions."""
    try:
        driver = open_driver(library)
        for name, types in _FUNCTIONS.items():
            getattr(driver, name).argtypes = types
    except (OSError, AttributeError):
        return None
    return driver


_driver = cache(load_driver)


def _call(name: str, *arguments: Any, doing: str = "") -> None:
    """Calls a function of the driver.

    Raises:
        DeviceMemoryError: the device has too little memory.
        DeviceError: any other error.
    """
    status = getattr(_driver(), name)(*arguments)
    if status == _OUT_OF_MEMORY:
        raise DeviceMemoryError(
            f"{doing}: {name}: the device has too little memory",
            hint="give a smaller budget of device memory or fewer columns, or end other GPU processes",
        )
    if status:
        raise DeviceError(
            f"{doing}: {name}: error {status} of the CUDA driver", hint="see `gear-data doctor`, line `gpu sharing`"
        )


def sharing_id(device: int) -> str | None:
    """Returns the UUID of a device or MIG instance whose memory processes can share.

    Returns None if the device or its driver does not support it. The device must be the current one.
    """
    if _driver() is None:
        return None
    with cuda_errors(f"CUDA device {device}"):
        # Makes the context: CuPy calls the runtime, which makes it late, and the driver's functions need it.
        import_extra("cupy", "gpu").cuda.runtime.deviceSynchronize()
    number, supported = ctypes.c_int(), ctypes.c_int()
    uuid = (ctypes.c_uint8 * 16)()
    call = partial(_call, doing=f"CUDA device {device}")
    call("cuDeviceGet", ctypes.byref(number), device)
    for attribute in _ATTRIBUTES:
        call("cuDeviceGetAttribute", ctypes.byref(supported), attribute, number)
        if not supported.value:
            return None
    call("cuDeviceGetUuid_v2", uuid, number)
    return bytes(uuid).hex()


class VirtualMemory:
    """Memory of a device, mapped into this process.

    Args:
        size: bytes.
        device: the number of the current device, which must have a context: see `sharing_id`.
        descriptor: a file descriptor of the memory, which this object takes over; None: the memory is allocated.

    Attributes:
        address: the address on the device.
        size: bytes.
        descriptor: a file descriptor by which another process maps the memory.

    Raises:
        DeviceMemoryError: the device has too little memory.
        DeviceError: the driver refuses; `descriptor` is closed.
    """

    def __init__(self, size: int, device: int, descriptor: int | None = None) -> None:
        call = partial(_call, doing=f"{size:,} bytes of device memory")
        location = _Location(_ON_DEVICE, device)
        properties, access = _Properties(_PINNED, _FILE_DESCRIPTOR, location), _Access(location, _READ_WRITE)
        unit, handle, address = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
        with ExitStack() as undo:  # undone in reverse order, unless everything succeeds
            if descriptor is not None:
                undo.callback(os.close, descriptor)
            call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(properties), _RECOMMENDED)
            whole = max(1, -(-size // unit.value)) * unit.value
            # A mapping and a descriptor keep the memory, so the handle is released in any case.
            with ExitStack() as released:
                if descriptor is None:
                    call("cuMemCreate", ctypes.byref(handle), whole, ctypes.byref(properties), 0)
                    released.callback(call, "cuMemRelease", handle)
                    exported = ctypes.c_int()
                    call("cuMemExportToShareableHandle", ctypes.byref(exported), handle, _FILE_DESCRIPTOR, 0)
                    descriptor = exported.value
                    undo.callback(os.close, descriptor)
                    os.set_inheritable(descriptor, False)
                else:
                    call("cuMemImportFromShareableHandle", ctypes.byref(handle), descriptor, _FILE_DESCRIPTOR)
                    released.callback(call, "cuMemRelease", handle)
                call("cuMemAddressReserve", ctypes.byref(address), whole, 0, 0, 0)
                undo.callback(call, "cuMemAddressFree", address, whole)
                call("cuMemMap", address, whole, 0, handle, 0)
                undo.callback(call, "cuMemUnmap", address, whole)
            call("cuMemSetAccess", address, whole, ctypes.byref(access), 1)
            undo.pop_all()
        self.address, self.size, self.descriptor = int(address.value), size, descriptor
        runtime = import_extra("cupy", "gpu").cuda.runtime
        self._close = weakref.finalize(self, _free, _driver(), runtime, self.address, whole, descriptor, os.getpid())
        # The end of the process unmaps the memory.
        self._close.atexit = False


def _free(driver: Any, runtime: Any, address: int, size: int, descriptor: int, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has no mapping; its descriptor keeps the memory until the child ends
    os.close(descriptor)
    with suppress(runtime.CUDARuntimeError):  # after an error that ends the context, nothing reads the memory
        # Unlike `cudaFree`, unmapping does not wait for the device.
        runtime.deviceSynchronize()
    driver.cuMemUnmap(address, size)
    driver.cuMemAddressFree(address, size)
