"""doctor: what this machine offers to gear-data, and what to do about what it lacks."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gear_data.common.progress import format_bytes
from gear_data.kernels.cuda.nvml import driver, gpu_count

#: For a probe of the GPU's packages: they import for seconds, and the kernels compile when first used.
_PROBE_SECONDS = 120.0


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
        _cpu, _kernels, _torch, _gpu, _cupy, _cuda_kernels, _cudf, _rdma, _pyverbs, _rdma_to_gpu,
        _locked_memory, _shared_memory, _open_files,
    ]  # fmt: skip
    return [check() for check in checks]


def _cpu() -> Check:
    usable = len(os.sched_getaffinity(0))
    return Check("cpu", True, f"{usable} of {os.cpu_count()} cores usable")


def _kernels() -> Check:
    try:
        import numpy as np

        from gear_data.kernels.cpu import random

        out = np.empty(1, np.int64)
        random.draw_below(np.uint64(0), 0, 0, 1, out)
    except Exception as error:  # whatever the compiler raises, the machine lacks it
        return Check("cpu kernels", False, f"do not compile: {error}", "reinstall numba: pip install -U numba llvmlite")
    numba = importlib.import_module("numba")
    return Check("cpu kernels", True, f"Numba {numba.__version__}, cache in {numba.config.CACHE_DIR or '__pycache__'}")


def _torch() -> Check:
    import torch

    cuda = torch.version.cuda
    found = f"{torch.__version__}, {torch.get_num_threads()} threads, {f'CUDA {cuda}' if cuda else 'no CUDA'}"
    if not cuda and gpu_count():
        return Check("torch", False, found, "for tensors on the GPU install torch's CUDA build: see pytorch.org")
    return Check("torch", True, found)


def _gpu() -> Check:
    found = driver()
    if found is None:
        return Check("gpu", False, "no NVIDIA driver", "none is needed; with a GPU, install the NVIDIA driver")
    names = ", ".join(f"{count} x {name}" for name, count in Counter(found.gpus).items())
    text = f"{names or 'none'}; driver {found.version}, for CUDA up to {'.'.join(map(str, found.cuda))}"
    if found.gpus and not gpu_count():
        return Check("gpu", False, f"{text}; all hidden", "CUDA_VISIBLE_DEVICES hides them: unset it")
    remedy = None if found.gpus else "the driver sees none: see nvidia-smi, and whether the container was given one"
    return Check("gpu", bool(found.gpus), text, remedy)


def _cupy() -> Check:
    return _probed("cupy", "cupy", "for GPU kernels: pip install 'gear-data[gpu]'")


def _cuda_kernels() -> Check:
    if not gpu_count():
        return Check("cuda kernels", False, "not tried", "no GPU: see the gpu line")
    return _probed("cuda kernels", "cupy", "see the cupy line")


def _cudf() -> Check:
    name = "cudf"
    if importlib.util.find_spec("cudf_polars") is not None and not gpu_count():
        return Check(name, False, "installed, not tried", "no GPU: see the gpu line; filters run on the CPU")
    return _probed(name, "cudf_polars", "for filters on the GPU: pip install 'gear-data[cudf]'; else the CPU does them")


def _probed(name: str, module: str, missing: str) -> Check:
    """What `gear_data.cli.gpu_probe` finds in a process of its own."""
    if importlib.util.find_spec(module) is None:
        return Check(name, False, "not installed", missing)
    command = [sys.executable, "-m", "gear_data.cli.gpu_probe", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        remedy = "see whether nvidia-smi answers; the first use compiles, and a slow disk may need longer"
        return Check(name, False, f"no answer in {_PROBE_SECONDS:.0f} s", remedy)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing said"]
        found = f"crashed with status {done.returncode}: {said[0]}"
        return Check(name, False, found, "the driver and the CUDA packages may not go together: see docs/how-to/gpu.md")
    return Check(name, **json.loads(done.stdout.splitlines()[-1]))


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


def _rdma_to_gpu() -> Check:
    name = "rdma to gpu"
    if not gpu_count():
        return Check(name, False, "not tried", "no GPU: see the gpu line")
    return _probed(name, "pyverbs", "see the pyverbs line")


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
