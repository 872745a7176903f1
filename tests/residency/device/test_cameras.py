"""Cameras with device="cuda", on a stand-in for a GPU: the CPU decodes them into pinned memory."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

import gear_data
from gear_data import SequenceLoader
from gear_data.collection.buffers import plain_memory
from gear_data.loaders.frameworks import pinned_batches
from tests.support.cameras.filmed import FRONT, film
from tests.support.cuda.cupy_stand_in import StandInGpu
from tests.support.cuda.loader_checks import copies, from_device, same


@pytest.fixture(scope="module")
def path(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filmed")
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset")
    film(folder / "dataset", [len(rollout) for rollout in rollouts])
    return folder / "dataset"


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "lerobot", "offsets": {FRONT: [-2, 0], "actions": [0, 3]}, "prefetch": 3},
        {"preset": "transitions", "context": None, "window_ids": True, "rank": 1, "world_size": 2},
    ],
    ids=lambda options: options["preset"],
)
def test_batches_with_cameras(
    gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    arguments = {"batch_size": 6, "seed": 3, **options}
    on_cpu = SequenceLoader(gear_data.open(path), **arguments)
    expected = copies(on_cpu, 12)
    kept = []

    def to_device(tensor: torch.Tensor, *, device: torch.device, non_blocking: bool) -> torch.Tensor:
        # The copy runs later. It does not hold its source, which the loader must not use again until then.
        kept.append(torch.empty_like(tensor))
        target, source, size = kept[-1].data_ptr(), tensor.data_ptr(), tensor.nbytes
        gpu.cupy.streams.add(gpu.torch.current, lambda: ctypes.memmove(target, source, size))
        return kept[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.Tensor, "to", to_device)
    monkeypatch.setattr(pinned_batches, "pinned_memory", plain_memory)
    dataset = gear_data.open(path, residency="device")
    loader = SequenceLoader(dataset, **arguments, device="cuda", backend="cuda")
    got = from_device(gpu, loader, 12)
    assert set(gpu.cupy.launched) == {"gear_collect"}  # the CPU draws the windows, because it decodes
    same(got, expected)
    assert loader.metrics()["pad_fraction"] == pytest.approx(on_cpu.metrics()["pad_fraction"])
