"""The order in which kernels read windows changes no batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gear_data.kernels.cuda.launcher import CudaLauncher
from gear_data.kernels.cuda.tuning import DEFAULT
from gear_data.residency.device import collector
from tests.support.cuda.gpu_stand_in import StandInGpu
from tests.support.cuda.loader_checks import check

pytestmark = pytest.mark.processes


def tune(monkeypatch: pytest.MonkeyPatch, **constants: int) -> None:
    """Gives constants to the launchers of collectors."""
    tuned = partial(CudaLauncher, tuning=replace(DEFAULT, **constants))
    monkeypatch.setattr(collector, "CudaLauncher", tuned)


@pytest.mark.parametrize("window", [1 << 20, 1])
@pytest.mark.parametrize("residency", ["device", "pinned"])
def test_short_windows_of_large_pinned_columns_are_read_in_the_order_of_addresses(
    gpu: StandInGpu, path: Path, residency: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, ordered_bytes=0, ordered_window=window)
    check(gpu, path, residency)
    assert ("gear_order_windows" in gpu.cupy.launched) == (residency == "pinned" and window > 1)
