"""The parts of the probe, each a table of named measurements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.gpu.probe.device import ProbedDevice
from scripts.gpu.probe.mappings import KINDS, Pages

#: Name -> flags of cudaHostRegister.
PORTABLE, MAPPED, READ_ONLY = 1, 2, 8
FLAGS = {
    "default": 0,
    "portable": PORTABLE,
    "mapped": MAPPED,
    "portable | mapped": PORTABLE | MAPPED,
    "read-only": READ_ONLY,
    "portable | mapped | read-only": PORTABLE | MAPPED | READ_ONLY,
}
#: Name -> number of a device's attribute (cudaDeviceAttr).
ATTRIBUTES = {
    "MultiProcessorCount": 16,
    "Integrated": 18,
    "CanMapHostMemory": 19,
    "L2CacheSize": 38,
    "AsyncEngineCount": 40,
    "UnifiedAddressing": 41,
    "PageableMemoryAccess": 88,
    "CanUseHostPointerForRegisteredMem": 91,
    "HostRegisterSupported": 99,
    "PageableMemoryAccessUsesHostPageTables": 100,
    "HostRegisterReadOnlySupported": 113,
}
#: Bytes of each mapping that is registered, and of the memory that the ceilings read or copy.
REGISTERED_BYTES, CEILING_BYTES = 16 << 20, 1 << 30
#: Blocks of 512 threads that read pinned memory. A few saturate PCIe.
BLOCKS = (4, 8, 16, 32, 64, 128)

Measure = Callable[[ProbedDevice], Any]


def facts() -> dict[str, Measure]:
    """Returns facts of the device."""
    return {
        "name": lambda device: _properties(device)["name"].decode(),
        "memory_bytes": lambda device: int(_properties(device)["totalGlobalMem"]),
        "compute_capability": lambda device: f"{_properties(device)['major']}.{_properties(device)['minor']}",
        "driver": lambda device: int(device.runtime.driverGetVersion()),
        "runtime": lambda device: int(device.runtime.runtimeGetVersion()),
        **{
            name: lambda device, number=number: int(device.runtime.deviceGetAttribute(number, 0))
            for name, number in ATTRIBUTES.items()
        },
        "link": _link,
    }


def _properties(device: ProbedDevice) -> Mapping[str, Any]:
    found: Mapping[str, Any] = device.runtime.getDeviceProperties(0)
    return found


def _link(device: ProbedDevice) -> dict[str, str]:
    """Returns the speed and width of the device's PCIe link, as the kernel shows them."""
    folder = Path("/sys/bus/pci/devices") / str(device.runtime.deviceGetPCIBusId(0)).lower()
    return {
        name: (folder / name).read_text().strip()
        for name in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    }


def registrations(kind: str) -> dict[str, Measure]:
    """Returns, for a kind of mapping, one measurement per set of flags."""
    return {name: partial(_register, KINDS[kind], flags) for name, flags in FLAGS.items()}


def _register(make: Callable[[np.ndarray], Pages], flags: int, device: ProbedDevice) -> dict[str, Any]:
    contents = np.random.default_rng(0).integers(0, 256, REGISTERED_BYTES, np.uint8)
    expected = int(contents.view(np.uint64).sum(dtype=np.uint64))
    pages = make(contents)
    try:
        device.runtime.hostRegister(pages.address, pages.size, flags)
    except device.errors as error:
        return {"registered": False, "error": first_line(error)}
    found: dict[str, Any] = {"registered": True}
    try:
        pointer = device.pointer(pages.address)
        found["same_address"] = pointer == pages.address
        found["kernel_reads"] = device.sum_by_kernel(pointer, pages.size) == expected
        found["copy_engine_reads"] = device.sum_by_copy(pages.address, pages.size) == expected
        if pages.writable:
            pages.protect()
            found["kernel_reads_after_mprotect"] = device.sum_by_kernel(pointer, pages.size) == expected
            found["copy_engine_reads_after_mprotect"] = device.sum_by_copy(pages.address, pages.size) == expected
        return found
    finally:
        device.runtime.hostUnregister(pages.address)


def ceilings() -> dict[str, Measure]:
    """Returns the ceilings. Each rate is in bytes per second; every byte counts once."""
    return {
        "copy engine, allocated": partial(_copy_engine, allocated),
        "copy engine, registered": partial(_copy_engine, registered),
        "SM reads, allocated": partial(_sm_reads, allocated),
        "SM reads, registered": partial(_sm_reads, registered),
        "device copy": _device_copy,
    }


@contextlib.contextmanager
def allocated(device: ProbedDevice) -> Any:
    """Yields (address, device's address) of memory that CUDA allocated."""
    array = device.pinned(CEILING_BYTES)
    _fill(array)
    yield array.ctypes.data, array.ctypes.data


@contextlib.contextmanager
def registered(device: ProbedDevice) -> Any:
    """Yields (address, device's address) of registered shared memory."""
    contents = np.empty(CEILING_BYTES, np.uint8)
    _fill(contents)
    pages = KINDS["memfd, shared, read-write"](contents)
    device.runtime.hostRegister(pages.address, pages.size, PORTABLE | MAPPED)
    try:
        pages.protect()
        yield pages.address, device.pointer(pages.address)
    finally:
        device.runtime.hostUnregister(pages.address)


def _fill(array: np.ndarray) -> None:
    tile = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8)
    for first in range(0, len(array), len(tile)):
        array[first : first + len(tile)] = tile[: len(array) - first]


def _copy_engine(memory: Callable[[ProbedDevice], Any], device: ProbedDevice) -> float:
    target = device.memory(CEILING_BYTES)
    with memory(device) as (address, _):
        return CEILING_BYTES / device.seconds(lambda: device.copy(target.ptr, address, CEILING_BYTES))


def _sm_reads(memory: Callable[[ProbedDevice], Any], device: ProbedDevice) -> dict[str, float]:
    """Returns blocks -> rate; the last is all multiprocessors with two blocks each."""
    with memory(device) as (_, pointer):
        counts = sorted({*BLOCKS, 2 * device.multiprocessors})
        return {
            f"{blocks} blocks": CEILING_BYTES
            / device.seconds(lambda blocks=blocks: device.read(pointer, CEILING_BYTES, blocks))
            for blocks in counts
            if blocks <= 4 * device.multiprocessors
        }


def _device_copy(device: ProbedDevice) -> float:
    target, source = device.memory(CEILING_BYTES), device.memory(CEILING_BYTES)
    return CEILING_BYTES / device.seconds(lambda: device.copy(target.ptr, source.ptr, CEILING_BYTES))


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[0]}"


#: Part -> its measurements by name.
PARTS: dict[str, dict[str, Measure]] = {
    "device": facts(),
    **{f"registration: {kind}": registrations(kind) for kind in KINDS},
    "ceilings": ceilings(),
}
