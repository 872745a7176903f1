"""Section (f): constants to try first on a device.

The section varies constants of collect.cu, and compares CPU and GPU by batch size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gear_data.errors import GearError
from gear_data.kernels.cuda.tuning import DEFAULT, Build, Tuning
from gear_data.loaders.builders.backend import Rates, choose_backend
from gear_data.residency.device.link import measure_link
from gpu_sections import collection as gpu_collection
from gpu_sections.collection import CollectCase, GpuCollection, rows_of
from gpu_sections.device import Gpu, HostMemory
from gpu_sections.report import Row, Section

#: Cases for each variant: small rows, rows of a kilobyte, and long rows.
CASES = (CollectCase(44, 100, 4096), CollectCase(1024, 100, 512), CollectCase(65536, 20, 64))
#: For the crossover: bytes of a row, and bytes of batches, at context 20.
CROSSOVER_ROWS = (44, 1024, 16384)
CROSSOVER_BYTES = tuple(1 << power for power in range(15, 28, 2))
_REPEATS = 20


@dataclass(frozen=True)
class Variant:
    """Constants of the collecting kernel, the same for pinned and for device memory.

    The launch bounds (threads of a block, blocks of a multiprocessor), the bytes of a piece, a lane's independent
    loads, and the most blocks that read pinned memory.
    """

    threads: int = DEFAULT.device.threads
    resident: int = DEFAULT.device.resident
    piece: int = DEFAULT.piece
    unroll: int = DEFAULT.device.unroll
    pinned_blocks: int = DEFAULT.pinned_blocks

    @property
    def name(self) -> str:
        size = f"{self.resident} x {self.threads} threads, PIECE {self.piece}, UNROLL {self.unroll}"
        return f"{size}, {self.pinned_blocks} blocks from pinned"

    @property
    def tuning(self) -> Tuning:
        build = Build(self.threads, self.resident, self.unroll)
        return replace(DEFAULT, device=build, pinned=build, pinned_blocks=self.pinned_blocks, piece=self.piece)


#: The first variant is the built-in one. With eight loads, the stages of 512 threads would exceed a block's 48 KiB.
VARIANTS = (
    Variant(),
    Variant(pinned_blocks=16),
    Variant(pinned_blocks=64),
    Variant(resident=2),
    Variant(threads=256, resident=2),
    Variant(threads=128, resident=5),
    Variant(threads=256, resident=3),
    Variant(piece=4096),
    Variant(piece=16384),
    Variant(unroll=2),
    Variant(threads=256, resident=2, unroll=8),
)


def knobs(gpu: Gpu, quick: bool, left: Callable[[], float]) -> Section:
    """Measures each variant with pinned and device memory; then the crossover.

    Ratios are to the built-in constants.
    """
    size = gpu_collection.QUICK_SOURCE_BYTES if quick else gpu_collection.SOURCE_BYTES
    section = Section([])
    with gpu.scope():
        host, copied = gpu.host(size), gpu.device(size)
        gpu.copy(copied, host.address, size)
        for variant in VARIANTS[:2] if quick else VARIANTS:
            if left() < 15:
                section.left_out.append(variant.name)
                continue
            try:
                section.rows += _variant(gpu, host, copied, variant, section.rows, quick)
            except (GearError, RuntimeError) as error:
                section.left_out.append(f"{variant.name} ({str(error).splitlines()[0]})")
        section.rows += _crossover(gpu, host, quick, left, section)
    return section


def _variant(gpu: Gpu, host: HostMemory, copied: int, variant: Variant, before: list[Row], quick: bool) -> list[Row]:
    rows = []
    built_in = {row.name.partition(":")[0]: row.values["us"] for row in before if VARIANTS[0].name in row.name}
    with gpu.tuned(variant.tuning):
        for where, base in (("pinned", host.address), ("device", copied)):
            for case in CASES[1:2] if quick else CASES:
                with gpu.scope():
                    made = GpuCollection(gpu, host.data, base, case, pinned=where == "pinned")
                    made.check()
                    seconds = gpu.seconds(made.calls())
                label = f"{where} {case.name}"
                own = built_in.get(label)
                values: dict[str, Any] = {"us": seconds * 1e6, "GB/s": case.nbytes / seconds / 1e9}
                rows.append(Row(f"{label}: {variant.name}", values, own / (seconds * 1e6) if own else 1.0))
    return rows


def _crossover(gpu: Gpu, host: HostMemory, quick: bool, left: Callable[[], float], section: Section) -> list[Row]:
    """Measures the time from windows in host memory to a batch in GPU memory.

    The CPU (one thread) collects into pinned memory, and the batch is copied; or the GPU collects from pinned memory.
    Times are by the clock. The ratio is CPU time to GPU time: above 1, `auto` should have chosen `cuda`.
    """
    rows, rates = [], Rates(measure_link(0))
    section.facts["link"] = asdict(rates.link)
    for row_bytes in CROSSOVER_ROWS[:2] if quick else CROSSOVER_ROWS:
        for nbytes in CROSSOVER_BYTES[2:4] if quick else CROSSOVER_BYTES:
            case = CollectCase(row_bytes, 20, max(1, nbytes // (20 * row_bytes)))
            if left() < 5:
                section.left_out.append(f"CPU or GPU, {case.name}")
                continue
            with gpu.scope():
                on_cpu, on_gpu = both_ways(gpu, host, case)
            chosen = choose_backend([(case.context, row_bytes)], case.batch, "pinned", rates)
            values = {"CPU us": on_cpu * 1e6, "us": on_gpu * 1e6, "KiB": case.nbytes / 1024, "auto": chosen}
            rows.append(Row(f"CPU or GPU, {case.name}", values, on_cpu / on_gpu))
    return rows


def both_ways(gpu: Gpu, host: HostMemory, case: CollectCase) -> tuple[float, float]:
    """Returns the median seconds by the CPU and by the GPU."""
    made = GpuCollection(gpu, host.data, host.address, case, pinned=True)
    staging, windows = gpu.pinned(case.nbytes), gpu.pinned(24 * case.batch)
    outputs = np.array([staging.ctypes.data], np.int64)
    windows.view(np.int64)[:] = rows_of(made.sets[0]).reshape(-1)

    def by_cpu(number: int) -> None:
        made.steps.collect(made.sets[number], outputs)
        gpu.copy(int(made.targets[number, 0]), staging.ctypes.data, case.nbytes)

    def by_gpu(number: int) -> None:
        gpu.copy(made.windows[0], windows.ctypes.data, 24 * case.batch)
        made.launch(number)

    return _clocked(gpu, by_cpu, len(made.sets)), _clocked(gpu, by_gpu, len(made.sets))


def _clocked(gpu: Gpu, call: Callable[[int], None], sets: int) -> float:
    seconds = []
    for number in range(_REPEATS + 3):
        begun = time.perf_counter()
        call(number % sets)
        gpu.wait()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[3:])
