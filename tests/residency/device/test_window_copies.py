"""Constants of kernels that change how batches are read, and never the batches.

Kernels read windows in the order of addresses, and a copy engine copies long windows. A stand-in for CuPy runs both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data import Goals, Mixture, SequenceLoader
from gear_data.errors import DeviceError
from gear_data.kernels.cuda import batch_copy
from gear_data.kernels.cuda.launcher import CudaLauncher
from gear_data.kernels.cuda.tuning import DEFAULT
from gear_data.residency.device import collector
from tests.support.cuda.copy_driver import OldCopyDriver
from tests.support.cuda.gpu_stand_in import StandInGpu
from tests.support.cuda.loader_checks import OPTIONS, check, convert, copies, from_device, on_gpu, same
from tests.support.feed.arguments import grouped

pytestmark = pytest.mark.processes


def tune(monkeypatch: pytest.MonkeyPatch, **constants: int) -> None:
    """Gives constants to the launchers of collectors."""
    tuned = partial(CudaLauncher, tuning=replace(DEFAULT, **constants))
    monkeypatch.setattr(collector, "CudaLauncher", tuned)


@pytest.mark.parametrize("residency", ["device", "pinned"])
def test_windows_of_large_columns_are_read_in_the_order_of_addresses(
    gpu: StandInGpu, path: Path, residency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, ordered_bytes=0)
    check(gpu, path, residency)
    assert "gear_order_windows" in gpu.cupy.launched


COPIED: dict[str, dict[str, Any]] = {
    "padding on the right": {"columns": ["observations", "actions", "rewards"]},
    "padding on the left": {"preset": "decision_transformer"},
    "edges around windows": {"preset": "lerobot", "offsets": {"observations": (-2, 3), "actions": (0, 50)}},
    "next states": {"preset": "corl"},
    "casts": {"columns": ["observations", "actions"], "dtype": "bfloat16"},
    "goals": {"preset": "transitions", "context": 1, "goals": Goals()},
}


@pytest.mark.parametrize("case", COPIED)
def test_a_copy_engine_copies_long_windows_from_pinned_memory(
    gpu: StandInGpu, path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, copied_bytes=12)
    check(gpu, path, "pinned", **COPIED[case])
    batches = gpu.cupy.copy_driver.batches
    # The floats that become bfloat16 are converted, by the kernel.
    assert bool(batches) == (case != "casts")
    assert "gear_draw_windows" not in gpu.cupy.launched or not batches


def test_a_copy_engine_copies_windows_of_several_datasets_and_an_older_driver(
    gpu: StandInGpu, folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = gpu.cupy.copy_driver
    monkeypatch.setattr(batch_copy, "open_driver", lambda: OldCopyDriver(driver))
    tune(monkeypatch, copied_bytes=12)
    paths = path, convert(12, folder / "two")
    options = {**OPTIONS, "columns": ["observations"]}
    on_cpu, mixture = (
        Mixture([(gear_data.open(one, residency=residency), 1.0) for one in paths], join=True)
        for residency in ("mmap", "pinned")
    )
    same(from_device(gpu, on_gpu(mixture, **options)), copies(SequenceLoader(on_cpu, **grouped(**options))))
    assert driver.batches


def test_the_kernel_leaves_rows_to_the_copy_engine(
    gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that copies nothing leaves these rows as the memory was."""
    tune(monkeypatch, copied_bytes=12)
    monkeypatch.setattr(gpu.cupy.copy_driver, "cuMemcpyBatchAsync_v2", lambda *arguments: 0)
    with pytest.raises(AssertionError):
        check(gpu, path, "pinned", columns=["observations"])


def test_the_kernel_copies_where_the_driver_cannot(
    gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, copied_bytes=12)
    check(gpu, path, "device")
    monkeypatch.setattr(gpu.cupy.cuda.runtime, "driverGetVersion", lambda: 12070)
    check(gpu, path, "pinned")
    assert not gpu.cupy.copy_driver.batches
    assert "gear_draw_windows" in gpu.cupy.launched


def test_copies_that_the_driver_refuses_are_an_error(gpu: StandInGpu) -> None:
    launcher = collector.CudaLauncher()
    some = np.array([16], np.int64)
    with pytest.raises(DeviceError, match="copying windows: cudaError 1"):
        launcher.copy_batch(batch_copy.Copies(some, some, some))
    launcher.copy_batch(batch_copy.Copies(some[:0], some[:0], some[:0]))
