"""Tests that need a GPU; they are skipped without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cuda_runner import Runner


@pytest.fixture(scope="session")
def _device() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("there is no GPU")


@pytest.fixture(scope="module", params=["device", "pinned"])
def runner(request: pytest.FixtureRequest, _device: None) -> Iterator[Runner]:
    from gpu_runner import GpuRunner, PinnedRunner

    found = {"device": GpuRunner, "pinned": PinnedRunner}[request.param]()
    yield found
    found.clear()
