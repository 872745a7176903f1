"""Section (a): the ceilings of the machine.

The other sections are compared with them.
"""

from __future__ import annotations

from gear_data.kernels.cuda import copies
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.residency.device.link import link_copies
from gpu_sections.collection import CACHES
from gpu_sections.device import Gpu, fill_raw
from gpu_sections.report import Row, Section

#: Bytes of a copy, if that is four times the L2.
_BYTES, _QUICK_BYTES = 512 << 20, 32 << 20
#: Blocks of the kernels that read pinned memory. Few blocks leave multiprocessors to training.
_BLOCKS = (8, 16, 32, 64)
#: Names of the ceilings.
SM_READS, COPY_ENGINE, DEVICE_COPY = "pinned to device, by kernels", "pinned to device, copy engine", "device to device"


def empty_launch(gpu: Gpu) -> float:
    """Returns the seconds of an empty launch, one after another."""
    with gpu.scope():
        out = gpu.device(8)
        return gpu.seconds([lambda: launches.in_order(gpu, 0, out, 1)])


def ceilings(gpu: Gpu, quick: bool) -> Section:
    """Runs (a): bytes per second of copies, and seconds of an empty launch.

    `backend="auto"` measures its rates by the same copies, in memory that CUDA allocated.
    """
    wanted = max(_QUICK_BYTES if quick else _BYTES, CACHES * gpu.l2_bytes)
    size = 1 << (wanted - 1).bit_length()
    runs = size // copies.RUN_BYTES
    section = Section([])
    found: dict[str, float] = {}
    with gpu.scope():
        target, source = gpu.device(size), gpu.device(size)
        allocated = gpu.pinned(size + copies.RUN_BYTES)
        fill_raw(allocated)
        for kind, address in (("", gpu.host(size + copies.RUN_BYTES).address), (", allocated", allocated.ctypes.data)):
            link = link_copies(gpu, target, address, size, (*_BLOCKS, gpu.blocks))
            found[COPY_ENGINE + kind] = size / gpu.seconds([link.copy])
            reads = {blocks: gpu.seconds([call]) for blocks, call in link.reads.items()}
            found[SM_READS + kind] = size / min(reads.values())
            scattered = min(gpu.seconds([call]) for call in link.runs.values())
            for blocks, seconds in reads.items():
                section.rows.append(Row(f"{SM_READS}{kind}, {blocks} blocks", {"GB/s": size / seconds / 1e9}))
            cost = max(0.0, scattered - min(reads.values())) / runs
            section.rows.append(
                Row(f"runs of {copies.RUN_BYTES} B{kind}", {"GB/s": size / scattered / 1e9, "ns a run": cost * 1e9})
            )
        gpu.copy(source, allocated.ctypes.data, size)
        found[DEVICE_COPY] = size / gpu.seconds([lambda: gpu.copy(target, source, size)])
    section.rows += [Row(name, {"GB/s": rate / 1e9}) for name, rate in found.items()]
    empty = empty_launch(gpu)
    section.rows.append(Row("empty launch", {"us": empty * 1e6}))
    section.facts |= {"bytes_per_second": found, "empty_launch_seconds": empty, "copied_bytes": size}
    return section
