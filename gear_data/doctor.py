"""doctor: what this machine offers to gear-data, and what to do about what it lacks."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gear_data.progress import format_bytes


@dataclass(frozen=True)
class Check:
    """One thing looked at. `remedy` says what to do where it is not ok; nothing here is needed on a CPU-only machine
    but the first checks."""

    name: str
    ok: bool
    found: str
    remedy: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Check]:
    """All checks. A check that fails says so; none raises."""
    checks: list[Callable[[], Check]] = [
        _cpu, _kernels, _torch, _gpu, _cupy, _cudf, _rdma, _pyverbs, _locked_memory, _shared_memory, _open_files
    ]  # fmt: skip
    return [check() for check in checks]


def _cpu() -> Check:
    usable = len(os.sched_getaffinity(0))
    return Check("cpu", True, f"{usable} of {os.cpu_count()} cores usable")


def _kernels() -> Check:
    try:
        import numpy as np

        from gear_data.kernels import random

        out = np.empty(1, np.int64)
        random.draw_below(np.uint64(0), 0, 0, 1, out)
    except Exception as error:  # whatever the compiler raises, the machine lacks it
        return Check("cpu kernels", False, f"do not compile: {error}", "reinstall numba: pip install -U numba llvmlite")
    numba = importlib.import_module("numba")
    return Check("cpu kernels", True, f"Numba {numba.__version__}, cache in {numba.config.CACHE_DIR or '__pycache__'}")


def _torch() -> Check:
    import torch

    return Check("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads")


def _gpu() -> Check:
    import torch

    count = torch.cuda.device_count()
    if count:
        names = {torch.cuda.get_device_name(i) for i in range(count)}
        return Check("gpu", True, f"{count} CUDA devices: {', '.join(sorted(names))}")
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        return Check("gpu", False, "a driver, and a torch without CUDA", "install a CUDA build of torch")
    return Check(
        "gpu", False, "no CUDA device", "none is needed; with one, install the NVIDIA driver and torch for CUDA"
    )


def _cupy() -> Check:
    if importlib.util.find_spec("cupy") is None:
        return Check("cupy", False, "not installed", "for GPU kernels: pip install 'gear-data[gpu]'")
    try:
        cupy = importlib.import_module("cupy")
        ready = bool(cupy.cuda.is_available())
    except Exception as error:  # CuPy raises its own kinds at import, by what is missing
        return Check("cupy", False, f"cannot be used: {error}", "install the CuPy that fits your CUDA version")
    return Check("cupy", ready, f"{cupy.__version__}", None if ready else "it finds no GPU: see the gpu line")


def _cudf() -> Check:
    if importlib.util.find_spec("cudf") is None:
        return Check("cudf", False, "not installed", "for filters on the GPU: pip install 'gear-data[cudf]'")
    return Check("cudf", True, "installed")


def _rdma() -> Check:
    folder = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if devices:
        return Check("rdma devices", True, ", ".join(devices))
    remedy = "needed only across servers; soft-RoCE works without hardware: rdma link add rxe0 type rxe netdev eth0"
    return Check("rdma devices", False, "none", remedy)


def _pyverbs() -> Check:
    if importlib.util.find_spec("pyverbs") is not None:
        return Check("pyverbs", True, "installed")
    return Check("pyverbs", False, "not installed", "comes with rdma-core; on Debian: apt-get install python3-pyverbs")


def _locked_memory() -> Check:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return Check("locked memory", True, "unlimited")
    # RDMA registers whole shards; GPUs pin them.
    enough = limit >= 1 << 30
    remedy = None if enough else "for RDMA: ulimit -l unlimited, or 'memlock unlimited' in limits.conf"
    return Check("locked memory", enough, format_bytes(limit), remedy)


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shared memory", False, "no /dev/shm", "mount a tmpfs at /dev/shm")
    usage = shutil.disk_usage(folder)
    enough = usage.free >= 1 << 30
    remedy = None if enough else "DataLoader workers need more: docker run --shm-size=8g, or remount /dev/shm larger"
    found = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    memfd = hasattr(os, "memfd_create") and ctypes.CDLL(None).memfd_create is not None
    return Check("shared memory", enough, found + (", memfd" if memfd else ", no memfd"), remedy)


def _open_files() -> Check:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = limit == resource.RLIM_INFINITY or limit >= 1024
    return Check("open files", enough, str(limit), None if enough else "ulimit -n 4096")
