"""Checks of this machine for `gear-data doctor`, each with a remedy."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from gear_data.cli.gpu.sharing import describe_sharing
from gear_data.common.environment import usable_cores
from gear_data.common.extras import EXTRAS
from gear_data.common.progress import format_bytes
from gear_data.kernels.cuda.nvml import driver, gpu_count

#: Timeout of a probe: GPU packages take seconds to import, and kernels are compiled at the first use.
_PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class MachineCheck:
    """Result of one check. On a machine without a GPU only the first checks matter.

    Attributes:
        name: name of the check.
        ok: whether the check passed.
        found: versions and sizes, or the problem.
        remedy: how to fix the problem; None if `ok`.
    """

    name: str
    ok: bool
    found: str
    remedy: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[MachineCheck]:
    """Runs all checks. A failure is a result; nothing raises."""
    checks: list[Callable[[], MachineCheck]] = [
        _packages, _cpu, _kernels, _torch, _gpu, _gpu_sharing, _cupy, _cuda_kernels, _cudf, _rdma, _pyverbs,
        _rdma_to_gpu, _locked_memory, _shared_memory, _open_files,
    ]  # fmt: skip
    return [*(check() for check in checks), *map(_extra, EXTRAS)]


def _packages() -> MachineCheck:
    wanted = ("gear-data", *(each.name for each in _required("")))
    versions = {name: _version(name) for name in wanted}
    texts = (f"{name} {version or 'missing'}" for name, version in versions.items())
    found = ", ".join([f"Python {platform.python_version()}", *texts])
    is_complete = None not in versions.values()
    return MachineCheck("packages", is_complete, found, None if is_complete else "pip install gear-data")


def _extra(name: str) -> MachineCheck:
    """Returns whether the packages of an extra are installed."""
    needed = _required(name)
    versions = {each.name: _version(each.name) for each in needed}
    missing = [
        f"{each.name}{each.specifier}"
        for each in needed
        if not each.specifier.contains(versions[each.name] or "0.dev0", prereleases=True)
    ]
    if not missing and needed:
        installed = ", ".join(f"{package} {version}" for package, version in versions.items())
        return MachineCheck(f"extra {name}", True, f"{installed}, for {EXTRAS[name]}")
    remedy = f"pip install 'gear-data[{name}]', for {EXTRAS[name]}"
    return MachineCheck(f"extra {name}", False, f"missing: {', '.join(missing)}", remedy)


def _required(extra: str) -> list[Requirement]:
    """Returns the packages that an extra of gear-data asks for, also through other extras. "" is the base install."""
    try:
        lines = metadata.requires("gear-data") or []
    except metadata.PackageNotFoundError:  # a source tree on the path
        return []
    found: dict[str, Requirement] = {}
    for each in map(Requirement, lines):
        if (each.marker is not None and each.marker.evaluate({"extra": extra})) or (each.marker is None and not extra):
            inner = [item for name in sorted(each.extras) for item in _required(name)]
            found |= {item.name: item for item in (inner if each.name == "gear-data" else [each])}
    return list(found.values())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> MachineCheck:
    usable = usable_cores()
    return MachineCheck("cpu", True, f"{usable} of {os.cpu_count()} cores usable")


def _kernels() -> MachineCheck:
    name = "cpu kernels"
    try:
        import numpy as np

        from gear_data.kernels.cpu import random

        out = np.empty(1, np.int64)
        random.draw_below(np.uint64(0), 0, 0, 1, out)
    except Exception as error:  # any exception of the compiler means that kernels cannot run
        return MachineCheck(name, False, f"do not compile: {error}", "reinstall Numba: pip install -U numba llvmlite")
    numba = importlib.import_module("numba")
    return MachineCheck(name, True, f"Numba {numba.__version__}, cache in {numba.config.CACHE_DIR or '__pycache__'}")


def _torch() -> MachineCheck:
    try:
        import torch
    except ModuleNotFoundError:
        return MachineCheck("torch", True, "not installed, so batches are of NumPy: pip install 'gear-data[torch]'")
    cuda = torch.version.cuda
    found = f"{torch.__version__}, {torch.get_num_threads()} threads, {f'CUDA {cuda}' if cuda else 'no CUDA'}"
    if not cuda and gpu_count():
        return MachineCheck("torch", False, found, "for tensors on the GPU, install torch with CUDA: see pytorch.org")
    return MachineCheck("torch", True, found)


def _gpu() -> MachineCheck:
    found = driver()
    if found is None:
        return MachineCheck(
            "gpu", False, "no NVIDIA driver", "a machine without a GPU needs none; otherwise install the NVIDIA driver"
        )
    names = ", ".join(f"{count} x {name}" for name, count in Counter(found.gpus).items())
    text = f"{names or 'none'}; driver {found.version}, for CUDA up to {'.'.join(map(str, found.cuda))}"
    if found.gpus and not gpu_count():
        return MachineCheck("gpu", False, f"{text}; all hidden", "unset CUDA_VISIBLE_DEVICES, which hides them")
    remedy = None if found.gpus else "check nvidia-smi; in a container, check that it was started with a GPU"
    return MachineCheck("gpu", bool(found.gpus), text, remedy)


def _gpu_sharing() -> MachineCheck:
    found = driver()
    if found is None or not found.gpus:
        return MachineCheck("gpu sharing", False, "no GPU", "see the gpu line")
    text, remedy = describe_sharing(found)
    return MachineCheck("gpu sharing", remedy is None, text, remedy)


def _cupy() -> MachineCheck:
    return _probed("cupy", "cupy", "for GPU kernels: pip install 'gear-data[gpu]'")


def _cuda_kernels() -> MachineCheck:
    if not gpu_count():
        return MachineCheck("cuda kernels", False, "not tried", "no GPU: see the gpu line")
    return _probed("cuda kernels", "cupy", "see the cupy line")


def _cudf() -> MachineCheck:
    name = "cudf"
    if importlib.util.find_spec("cudf_polars") is not None and not gpu_count():
        return MachineCheck(name, False, "installed, not tried", "no GPU: see the gpu line; filters run on the CPU")
    return _probed(name, "cudf_polars", "for filters on the GPU: pip install 'gear-data[cudf]'; else the CPU runs them")


def _probed(name: str, module: str, remedy_if_missing: str) -> MachineCheck:
    """Runs a probe of `gear_data.cli.gpu.probe` in a separate process."""
    if importlib.util.find_spec(module) is None:
        return MachineCheck(name, False, "not installed", remedy_if_missing)
    command = [sys.executable, "-m", "gear_data.cli.gpu.probe", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        remedy = "check whether nvidia-smi responds; the first use compiles kernels, which is slow on a slow disk"
        return MachineCheck(name, False, f"timed out after {_PROBE_SECONDS:.0f} s", remedy)
    if done.returncode:
        message = done.stderr.strip().splitlines()[-1:] or ["no message"]
        found = f"crashed with status {done.returncode}: {message[0]}"
        remedy = "the driver and the CUDA packages may not fit together: see docs/how-to/gpu.md"
        return MachineCheck(name, False, found, remedy)
    return MachineCheck(name, **json.loads(done.stdout.splitlines()[-1]))


def _rdma() -> MachineCheck:
    folder = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if devices:
        return MachineCheck("rdma devices", True, ", ".join(devices))
    remedy = "needed only across servers; without hardware, use soft-RoCE: rdma link add rxe0 type rxe netdev eth0"
    return MachineCheck("rdma devices", False, "none", remedy)


def _pyverbs() -> MachineCheck:
    if importlib.util.find_spec("pyverbs") is not None:
        return MachineCheck("pyverbs", True, "installed")
    remedy = "pyverbs comes with rdma-core; on Debian: apt-get install python3-pyverbs"
    return MachineCheck("pyverbs", False, "not installed", remedy)


def _rdma_to_gpu() -> MachineCheck:
    name = "rdma to gpu"
    if not gpu_count():
        return MachineCheck(name, False, "not tried", "no GPU: see the gpu line")
    return _probed(name, "pyverbs", "see the pyverbs line")


def _locked_memory() -> MachineCheck:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return MachineCheck("locked memory", True, "unlimited")
    # RDMA registers whole shards; GPUs pin them.
    enough = limit >= 1 << 30
    remedy = None if enough else "for RDMA: ulimit -l unlimited, or 'memlock unlimited' in limits.conf"
    return MachineCheck("locked memory", enough, format_bytes(limit), remedy)


def _shared_memory() -> MachineCheck:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return MachineCheck("shared memory", False, "no /dev/shm", "mount a tmpfs at /dev/shm")
    usage = shutil.disk_usage(folder)
    enough = usage.free >= 1 << 30
    remedy = None if enough else "DataLoader workers need more: docker run --shm-size=8g, or remount /dev/shm larger"
    found = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    memfd = hasattr(os, "memfd_create") and ctypes.CDLL(None).memfd_create is not None
    return MachineCheck("shared memory", enough, found + (", memfd" if memfd else ", no memfd"), remedy)


def _open_files() -> MachineCheck:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = limit == resource.RLIM_INFINITY or limit >= 1024
    return MachineCheck("open files", enough, str(limit), None if enough else "raise the limit: ulimit -n 4096")
