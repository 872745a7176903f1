"""Probes of this machine's GPU packages, for `gear-data doctor`.

The doctor runs each probe in a separate process: CUDA takes memory and time, and a crash or a hang must not end the
doctor.

    python -m gear_data.cli.gpu.probe cupy

prints one line of JSON: {"ok": ..., "found": ..., "remedy": ...}.
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
class ProbeResult:
    """Result of one probe.

    Attributes:
        ok: whether the package works.
        found: versions and devices, or the failure.
        remedy: how to fix the problem; None if `ok`.
    """

    ok: bool
    found: str
    remedy: str | None = None


def probe_cupy() -> ProbeResult:
    """Checks CuPy: its CUDA runtime and compiler (NVRTC) against the driver."""
    cupy = import_extra("cupy", "gpu")
    runtime, compiler = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.nvrtc.getVersion()
    found = f"{cupy.__version__}, CUDA runtime {_version(runtime)}, NVRTC {'.'.join(map(str, compiler))}"
    driver = cupy.cuda.runtime.driverGetVersion()
    if not driver:
        return ProbeResult(False, f"{found}, no driver", "a machine without a GPU needs none")
    found += f", driver for CUDA {_version(driver)}"
    if driver // 1000 < runtime // 1000:
        remedy = f"update the NVIDIA driver, or install CuPy for its CUDA: pip install cupy-cuda{driver // 1000}x"
        return ProbeResult(False, found, remedy)
    if not cupy.cuda.is_available():
        return ProbeResult(False, found, "CuPy finds no GPU: see the gpu line, and check CUDA_VISIBLE_DEVICES")
    return ProbeResult(True, found)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def probe_kernels() -> ProbeResult:
    """Compiles the CUDA kernels and runs one."""
    import numpy as np

    from gear_data.kernels.cuda import launch_arguments as launches
    from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors

    started = time.perf_counter()
    launcher = CudaLauncher()
    cupy = import_extra("cupy", "gpu")
    with cuda_errors("the first launch"):
        out = cupy.zeros(1000, np.int64)
        launches.in_order(launcher, 5, int(out.data.ptr), 1000)
        correct = bool((out.get() == np.arange(5, 1005)).all())
    device = cupy.cuda.Device(0)
    found = (
        f"compute capability {device.compute_capability}, {device.attributes['MultiProcessorCount']} multiprocessors"
    )
    if not correct:
        return ProbeResult(False, f"{found}: a kernel gives wrong numbers", "check nvidia-smi for memory errors")
    return ProbeResult(True, f"{found}, compiled and run in {time.perf_counter() - started:.1f} s")


def probe_cudf() -> ProbeResult:
    """Runs a filter on cuDF, through Polars."""
    import polars as pl

    from gear_data.kernels.cuda import cudf

    started = time.perf_counter()
    version = import_extra("cudf_polars", "cudf").__version__
    found, _ = cudf.evaluate(pl.DataFrame({"a": [1, 2, 3]}), pl.col("a") > 1)
    if found.to_list() != [False, True, True]:
        remedy = "set CUDA_VISIBLE_DEVICES= (empty) for processes that filter"
        return ProbeResult(False, f"{version}: a filter gives wrong rows", remedy)
    return ProbeResult(True, f"{version}, a filter took {time.perf_counter() - started:.1f} s")


def probe_rdma() -> ProbeResult:
    """Checks whether an RDMA device can write to the memory of the first GPU."""
    from gear_data.cluster.rdma.gpu_memory import HINT, gpu_transfer_method

    method = gpu_transfer_method(0)
    if method is None:
        return ProbeResult(False, "not possible", f"needed only for backend='cuda' across servers: {HINT}")
    return ProbeResult(True, f"by {method}; gear-data was not yet tested on hardware that can do this")


PROBES: dict[str, Callable[[], ProbeResult]] = {
    "cupy": probe_cupy, "cuda kernels": probe_kernels, "cudf": probe_cudf, "rdma to gpu": probe_rdma,
}  # fmt: skip


def run_probe(name: str) -> ProbeResult:
    """Runs one probe. An exception becomes a result that is not ok."""
    try:
        return PROBES[name]()
    except GearError as error:
        return ProbeResult(False, error.message, error.hint or "see the lines above")
    except Exception as error:  # CuPy, cuDF and Polars raise their own exceptions
        reason = (str(error).strip() or "no reason").splitlines()[0]
        return ProbeResult(
            False, f"{type(error).__name__}: {reason}", "see docs/how-to/gpu.md for versions that work together"
        )


if __name__ == "__main__":
    print(json.dumps(asdict(run_probe(sys.argv[1]))))
