"""How fast a device reads this machine's memory.

Two engines read it, at different rates: the copy engine, and the multiprocessors (SMs), which run kernels.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from gear_data.common.extras import import_extra
from gear_data.common.file_lock import locked
from gear_data.errors import DeviceError, DeviceMemoryError, HostMemoryError
from gear_data.kernels.cuda import copies
from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors
from gear_data.residency.device.memory import TO_DEVICE, DeviceBuffer, PinnedBuffer
from gear_data.storage.remote.cache import default_folder

_log = logging.getLogger(__name__)
_LINE = 128
#: Bytes that are copied: four times the cache, so that a second reading comes over the link again.
_CACHES, _LEAST_BYTES, _MOST_BYTES = 4, 64 << 20, 512 << 20
#: Blocks of the reading kernels. A few saturate PCIe. All of them are tried, too, and the faster ones count.
_FEW_BLOCKS = 32
#: An idle device needs about this long to reach its clocks.
WARM_SECONDS = 0.3
_REPEATS = 5


@dataclass(frozen=True)
class LinkRates:
    """Rates at which a device reads this machine's pinned memory.

    The defaults are for PCIe 5 x16: nvbandwidth on an H100 reaches 55 GB/s with the copy engine, and 35 GB/s with
    kernels. A request costs one line of 128 bytes.

    Attributes:
        copy: bytes per second of the copy engine.
        reads: bytes per second of kernels that read contiguous memory.
        request: seconds that each scattered run of bytes costs kernels in addition to its bytes.
    """

    copy: float = 55e9
    reads: float = 35e9
    request: float = _LINE / 35e9


def link_rates(device: int) -> LinkRates:
    """Returns the rates of a device, measured once on a machine.

    A measurement takes about a second. The result is kept in `gpu` of the cache folder, by the device's UUID, its place
    on the bus, and the driver's version. Processes measure one after another. If the device cannot be measured, the
    rates are the defaults.
    """
    try:
        return _kept(default_folder() / "gpu" / f"link-{_identity(device)}.json", device)
    except (DeviceError, DeviceMemoryError, HostMemoryError) as error:
        _log.info("the rates of CUDA device %d are not measured: %s", device, error.message)
        return LinkRates()


def _identity(device: int) -> str:
    runtime = import_extra("cupy", "gpu").cuda.runtime
    with cuda_errors(f"CUDA device {device}"):
        # CuPy cuts it at its first zero byte, and leaves it out of builds for old CUDA versions.
        uuid = bytes(runtime.getDeviceProperties(device).get("uuid", b""))
        return f"{uuid.hex()}-{runtime.deviceGetPCIBusId(device)}-{runtime.driverGetVersion()}"


def _kept(path: Path, device: int) -> LinkRates:
    known = _read(path)
    if known is not None:
        return known
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            known = _read(path) or _measured(path, device)
            # Readers hold no lock, so the file appears whole.
            part = path.with_suffix(".part")
            part.write_text(json.dumps(asdict(known)))
            part.replace(path)
            return known
    except OSError as error:
        _log.info("the rates of CUDA device %d cannot be kept in %s: %s", device, path, error)
        return _measured(path, device)


def _read(path: Path) -> LinkRates | None:
    """Returns the rates in a file, or None if the file holds none."""
    try:
        found = json.loads(path.read_text())
        rates = LinkRates(**{name: float(value) for name, value in found.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    right = all(math.isfinite(value) for value in asdict(rates).values())
    return rates if right and rates.copy > 0 and rates.reads > 0 and rates.request >= 0 else None


@cache
def _measured(path: Path, device: int) -> LinkRates:
    """Measures once in a process, also if the result cannot be kept."""
    return measure_link(device)


def measure_link(device: int) -> LinkRates:
    """Measures the rates of a device.

    Raises:
        DeviceError: the device fails.
        DeviceMemoryError, HostMemoryError: there is too little memory.
    """
    cupy = import_extra("cupy", "gpu")
    launcher = CudaLauncher(device)
    with cuda_errors("measuring the link"), cupy.cuda.Device(device):
        cached = int(cupy.cuda.runtime.getDeviceProperties(device)["l2CacheSize"])
        size = 1 << (min(max(_CACHES * cached, _LEAST_BYTES), _MOST_BYTES) - 1).bit_length()
        source, target = PinnedBuffer(size + copies.RUN_BYTES), DeviceBuffer(size, copies.WORD_BYTES)
        fill(source.array())
        with cupy.cuda.Stream(non_blocking=True):
            rates = _rates(link_copies(launcher, target.address, source.address, size), size)
    _log.info("CUDA device %d reads this machine's memory at %s", device, rates)
    return rates


@dataclass(frozen=True)
class LinkCopies:
    """Copies of equally many bytes over the link.

    Each call puts one copy in CuPy's current stream.

    Attributes:
        copy: by the copy engine.
        reads: by kernels that read contiguous words, with few and with many blocks.
        runs: the same for scattered runs of `copies.RUN_BYTES` bytes.
    """

    copy: Callable[[], None]
    reads: dict[int, Callable[[], None]]
    runs: dict[int, Callable[[], None]]


def link_copies(
    launcher: CudaLauncher, target: int, source: int, size: int, blocks: Iterable[int] = (_FEW_BLOCKS,)
) -> LinkCopies:
    """Returns the copies that the rates are measured by.

    Args:
        target: address of device memory.
        source: address of pinned memory with `copies.RUN_BYTES` more bytes.
        size: a power of two.
        blocks: numbers of blocks to try, besides all of the launcher's.
    """
    cuda = import_extra("cupy", "gpu").cuda
    counts = sorted({min(count, launcher.blocks) for count in (*blocks, launcher.blocks)})
    return LinkCopies(
        lambda: cuda.runtime.memcpyAsync(target, source, size, TO_DEVICE, cuda.get_current_stream().ptr),
        {count: partial(copies.copy_words, launcher, target, source, size, count) for count in counts},
        {
            count: partial(copies.copy_runs, launcher, target, source, size, size // copies.RUN_BYTES, count)
            for count in counts
        },
    )


def _rates(found: LinkCopies, size: int) -> LinkRates:
    until = time.perf_counter() + WARM_SECONDS
    while True:
        event_seconds(found.copy)
        if time.perf_counter() >= until:
            break
    copy = _median(found.copy)
    reads = min(map(_median, found.reads.values()))
    runs = min(map(_median, found.runs.values()))
    return LinkRates(size / copy, size / reads, max(0.0, runs - reads) / (size // copies.RUN_BYTES))


def _median(call: Callable[[], None]) -> float:
    call()
    return statistics.median(event_seconds(call) for _ in range(_REPEATS))


def event_seconds(call: Callable[[], None]) -> float:
    """Measures the work that a call puts in CuPy's current stream, in seconds."""
    cuda = import_extra("cupy", "gpu").cuda
    begin, end = cuda.Event(), cuda.Event()
    begin.record()
    call()
    end.record()
    end.synchronize()
    # An event's clock has a resolution of half a microsecond.
    return max(float(cuda.get_elapsed_time(begin, end)) / 1e3, 5e-7)


def fill(memory: Any) -> None:
    """Fills uint8 [n] with random bytes, repeated with a period of about a MiB."""
    tile = np.random.default_rng(0).integers(0, 256, (1 << 20) + 9, np.uint8)
    for first in range(0, len(memory), len(tile)):
        part = memory[first : first + len(tile)]
        part[:] = tile[: len(part)]
