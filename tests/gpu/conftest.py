"""Skips the tests of this folder if there is no GPU, unless $GEAR_DATA_REQUIRE_GPU is set.

After some errors of a kernel, every call of CUDA fails in its process. A worker of xdist then ends, and xdist starts
another one for the other tests.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest

from tests.support.cuda.runner import Runner

#: Whether this process has found a GPU.
_found = False


@pytest.fixture(scope="session")
def _device() -> None:
    global _found
    # A check of a machine with a GPU must not pass because its tests were skipped.
    missing = pytest.fail if os.environ.get("GEAR_DATA_REQUIRE_GPU") else pytest.skip
    if importlib.util.find_spec("cupy") is None:
        missing("CuPy is not installed")
    import cupy

    if not cupy.cuda.is_available():
        missing("there is no GPU")
    _found = True


def pytest_runtest_logfinish() -> None:
    if not (_found and "PYTEST_XDIST_WORKER" in os.environ):
        return
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(f"CUDA fails in this process from now on: {error}", file=sys.__stderr__, flush=True)
        os._exit(1)


@pytest.fixture(scope="module", params=["device", "pinned"])
def runner(request: pytest.FixtureRequest, _device: None) -> Iterator[Runner]:
    from tests.support.cuda.gpu_runner import GpuRunner, PinnedRunner

    found = {"device": GpuRunner, "pinned": PinnedRunner}[request.param]()
    yield found
    found.clear()
