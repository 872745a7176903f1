"""SequenceLoader(device="cuda") on a GPU.

The batches equal the CPU's, also in a training step that is captured as a CUDA graph.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data import SequenceLoader
from tests.support.cuda.loader_checks import OPTIONS, LoaderChecks, convert, copies, on_gpu, same


class CurrentGpu:
    """The current device.

    The consumer is torch's current stream, which is kept busy so that it lags behind.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._busy = torch.ones(1 << 22, device="cuda")

    def read(self, batch: dict[str, Any]) -> dict[str, Any]:
        for _ in range(20):
            self._busy.mul_(1.0)
        return {key: value.clone() for key, value in batch.items()}

    def finish(self) -> None:
        self._torch.cuda.synchronize()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("device")


@pytest.fixture
def gpu(_device: None) -> CurrentGpu:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this torch was built without CUDA")
    return CurrentGpu(torch)


class TestLoaderOnGpu(LoaderChecks):
    pass


def test_tensors_are_on_the_device(gpu: CurrentGpu, folder: Path) -> None:
    ds = gear_data.open(convert(11, folder / "one"), residency="device")
    for batch in itertools.islice(on_gpu(ds), 3):
        assert {tensor.device.type for tensor in batch.values()} == {"cuda"}


def test_another_stream(gpu: CurrentGpu, folder: Path) -> None:
    import torch

    path = convert(11, folder / "one")
    expected = copies(SequenceLoader(gear_data.open(path), **OPTIONS))
    with torch.cuda.stream(torch.cuda.Stream()):
        got = [gpu.read(batch) for batch in itertools.islice(on_gpu(gear_data.open(path, residency="pinned")), 20)]
    gpu.finish()
    same(got, expected)


def test_a_captured_step_sees_every_batch(gpu: CurrentGpu, folder: Path) -> None:
    import torch

    path = convert(11, folder / "one")
    options = {**OPTIONS, "columns": ["observations"]}
    batches = copies(SequenceLoader(gear_data.open(path), **options))
    expected = [batch["observations"].sum(dtype=torch.float64).item() for batch in batches]
    loader = iter(on_gpu(gear_data.open(path, residency="device"), **options))
    static = {key: value.clone() for key, value in next(loader).items()}
    total = torch.zeros((), dtype=torch.float64, device="cuda")

    def step() -> None:
        total.copy_(static["observations"].sum(dtype=torch.float64))

    # A first run, because kernels are loaded at their first use.
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # The loader's thread may allocate and wait during the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    found = []
    for batch in itertools.islice(loader, 19):
        for key, value in batch.items():
            static[key].copy_(value)
        graph.replay()
        found.append(total.clone())
    assert [value.item() for value in found] == pytest.approx(expected[1:], rel=1e-9)
    loader.close()
