"""Skips the tests of this folder if there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cuda.runner import Runner


@pytest.fixture(scope="session")
def _device() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("there is no GPU")


@pytest.fixture(scope="module", params=["device", "pinned"])
def runner(request: pytest.FixtureRequest, _device: None) -> Iterator[Runner]:
    from tests.support.cuda.gpu_runner import GpuRunner, PinnedRunner

    found = {"device": GpuRunner, "pinned": PinnedRunner}[request.param]()
    yield found
    found.clear()
