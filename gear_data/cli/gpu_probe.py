"""What the GPU packages of this machine can do, tried out. For doctor, in a process of its own: CUDA takes memory and
time, and what hangs or crashes is this process alone.

    python -m gear_data.cli.gpu_probe cupy

prints one line of JSON, {"ok": ..., "found": ..., "remedy": ...}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from gear_data.common.extras import import_extra
from gear_data.errors import GearError


@dataclass(frozen=True)
class Finding:
    """`remedy` says what to do where it is not ok."""

    ok: bool
    found: str
    remedy: str | None = None


def probe_cupy() -> Finding:
    """CuPy, the CUDA runtime and the compiler (NVRTC) it comes with, and the driver they meet."""
    cupy = import_extra("cupy", "gpu")
    runtime, compiler = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.nvrtc.getVersion()
    found = f"{cupy.__version__}, CUDA runtime {_version(runtime)}, NVRTC {'.'.join(map(str, compiler))}"
    driver = cupy.cuda.runtime.driverGetVersion()
    if not driver:
        return Finding(False, f"{found}, no driver", "none is needed on a machine without a GPU")
    found += f", driver for CUDA {_version(driver)}"
    if driver // 1000 < runtime // 1000:
        remedy = f"update the NVIDIA driver, or install the CuPy for its CUDA: pip install cupy-cuda{driver // 1000}x"
        return Finding(False, found, remedy)
    if not cupy.cuda.is_available():
        return Finding(False, found, "it finds no GPU: see the gpu line, and CUDA_VISIBLE_DEVICES")
    return Finding(True, found)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def probe_kernels() -> Finding:
    """The kernels, compiled, and one of them run."""
    import numpy as np

    from gear_data.kernels.cuda import launches
    from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors

    begun = time.perf_counter()
    launcher = CudaLauncher()
    cupy = import_extra("cupy", "gpu")
    with cuda_errors("the first launch"):
        out = cupy.zeros(1000, np.int64)
        launches.in_order(launcher, 5, int(out.data.ptr), 1000)
        right = bool((out.get() == np.arange(5, 1005)).all())
    device = cupy.cuda.Device(0)
    found = (
        f"compute capability {device.compute_capability}, {device.attributes['MultiProcessorCount']} multiprocessors"
    )
    if not right:
        return Finding(False, f"{found}: a kernel gives wrong numbers", "see whether nvidia-smi tells of memory errors")
    return Finding(True, f"{found}, compiled and run in {time.perf_counter() - begun:.1f} s")


def probe_cudf() -> Finding:
    """A filter by cuDF, through Polars."""
    import polars as pl

    from gear_data.kernels.cuda import cudf

    begun = time.perf_counter()
    version = import_extra("cudf_polars", "cudf").__version__
    found, _ = cudf.evaluate(pl.DataFrame({"a": [1, 2, 3]}), pl.col("a") > 1)
    if found.to_list() != [False, True, True]:
        return Finding(False, f"{version}: a filter gives wrong rows", "set CUDA_VISIBLE_DEVICES= for what filters")
    return Finding(True, f"{version}, a filter took {time.perf_counter() - begun:.1f} s")


def probe_rdma() -> Finding:
    """Whether an RDMA device can write to the memory of the first GPU."""
    from gear_data.cluster.rdma.gpu_memory import HINT, gpu_transfer_method

    way = gpu_transfer_method(0)
    if way is None:
        return Finding(False, "no way to", f"needed for backend='cuda' across servers alone: {HINT}")
    return Finding(True, f"by {way}, which no test has tried on such a machine yet")


PROBES: dict[str, Callable[[], Finding]] = {
    "cupy": probe_cupy, "cuda kernels": probe_kernels, "cudf": probe_cudf, "rdma to gpu": probe_rdma,
}  # fmt: skip


def run_probe(name: str) -> Finding:
    """A probe that fails says so."""
    try:
        return PROBES[name]()
    except GearError as error:
        return Finding(False, error.message, error.hint or "see the lines above")
    except Exception as error:  # CuPy, cuDF and Polars raise their own kinds, by what is missing
        reason = (str(error).strip() or "no reason").splitlines()[0]
        return Finding(False, f"{type(error).__name__}: {reason}", "docs/how-to/gpu.md lists versions that go together")


if __name__ == "__main__":
    print(json.dumps(asdict(run_probe(sys.argv[1]))))
