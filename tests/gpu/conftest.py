"""Skips the tests of this folder if there is no GPU, unless $GEAR_DATA_REQUIRE_GPU is set."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from tests.support.cuda.runner import Runner


@pytest.fixture(scope="session")
def _device() -> None:
    # A check of a machine with a GPU must not pass because its tests were skipped.
    missing = pytest.fail if os.environ.get("GEAR_DATA_REQUIRE_GPU") else pytest.skip
    if importlib.util.find_spec("cupy") is None:
        missing("CuPy is not installed")
    import cupy

    if not cupy.cuda.is_available():
        missing("there is no GPU")


@pytest.fixture(scope="module", params=["device", "pinned"])
def runner(request: pytest.FixtureRequest, _device: None) -> Iterator[Runner]:
    from tests.support.cuda.gpu_runner import GpuRunner, PinnedRunner

    found = {"device": GpuRunner, "pinned": PinnedRunner}[request.param]()
    yield found
    found.clear()
