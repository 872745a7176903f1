"""Section (h): collection from tables of several gigabytes.

The larger the table, the more often its pages are missing from the GPU's address caches.
"""

from __future__ import annotations

from collections.abc import Callable

from gear_data.errors import DeviceMemoryError, HostMemoryError
from gpu_sections.ceilings import DEVICE_COPY, SM_READS
from gpu_sections.collection import CollectCase, GpuCollection
from gpu_sections.device import Gpu, HostMemory
from gpu_sections.report import Row, Section

#: Bytes of the tables.
FOOTPRINTS = (2 << 30, 16 << 30, 64 << 30)
QUICK_FOOTPRINTS = (1 << 30, 2 << 30)
CASES = (CollectCase(0, 20, 4096), CollectCase(44, 100, 4096), CollectCase(1024, 100, 1024))
#: Sets of windows: enough to touch most pages of a table.
_SETS = 32
#: Gigabytes that are filled and registered in a second, at least.
_PREPARED = 2.0
#: The least part of the device's memory that is left for batches.
_SPARE_BYTES = 8 << 30


def footprints(gpu: Gpu, rates: dict[str, float], quick: bool, left: Callable[[], float]) -> Section:
    """Measures windows of a table's first gigabytes.

    The table is in pinned memory, and then in the GPU's memory. Windows come as drawn, and in the order of their
    addresses.

    Args:
        rates: bytes per second of the ceilings.
        left: returns the seconds that are left for the section.
    """
    section = Section([])
    wanted = QUICK_FOOTPRINTS if quick else FOOTPRINTS
    with gpu.scope():
        host = _largest(gpu, wanted, left, section)
        if host is None:
            return section
        fits = [size for size in wanted if size <= len(host.data)]
        for size in fits:
            _measure(gpu, host, host.address, size, "pinned", rates[SM_READS], left, section)
        free = gpu.free_bytes() - (0 if quick else _SPARE_BYTES)
        on_device = [size for size in fits if size <= free]
        for size in set(fits) - set(on_device):
            section.left_out.append(f"device {_name(size)} ({free / 2**30:.0f} GiB of the GPU's memory are free)")
        if on_device:
            copied = gpu.device(on_device[-1])
            gpu.copy(copied, host.address, on_device[-1])
            for size in on_device:
                _measure(gpu, host, copied, size, "device", rates[DEVICE_COPY], left, section)
    return section


def _largest(gpu: Gpu, wanted: tuple[int, ...], left: Callable[[], float], section: Section) -> HostMemory | None:
    """Returns registered memory for the largest table that fits, or None."""
    for size in reversed(wanted):
        needed = size / 2**30 / _PREPARED
        if needed > left() / 2:
            section.left_out.append(f"{_name(size)} ({needed:.0f} s to fill it, {left():.0f} s are left)")
            continue
        try:
            return gpu.host(size)
        except (HostMemoryError, DeviceMemoryError) as error:
            section.left_out.append(f"{_name(size)} ({error.message})")
    return None


def _measure(
    gpu: Gpu, host: HostMemory, base: int, size: int, where: str, ceiling: float, left: Callable[[], float],
    section: Section,
) -> None:  # fmt: skip
    for case in CASES:
        for in_order in (False, True):
            name = f"{where} {_name(size)}: {case.name}{', in order' if in_order else ''}"
            if left() < 5:
                section.left_out.append(name)
                continue
            with gpu.scope():
                made = GpuCollection(
                    gpu, host.data[:size], base, case, pinned=where == "pinned", least_sets=_SETS, in_order=in_order
                )
                made.check()
                seconds = gpu.seconds(made.calls())
            rate = case.nbytes / seconds
            section.rows.append(Row(name, {"us": seconds * 1e6, "GB/s": rate / 1e9}, rate / ceiling))


def _name(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
