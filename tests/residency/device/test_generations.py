"""Generations of a dataset that grows, in memory that a GPU reads."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.residency import host
from gear_data.residency.device.columns import DeviceCopy
from gear_data.residency.device.registration import FALLBACK_VARIABLE
from tests.support.cuda.cupy_stand_in import CudaError, StandInGpu
from tests.support.cuda.host_registration import NOT_SUPPORTED
from tests.support.cuda.loader_checks import OPTIONS, copies, from_device, on_gpu, same
from tests.support.running.eventually import eventually

#: Steps of an episode; a shard has one episode.
LENGTH = 20


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a separate registry."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the files of the shards that are loaded, each time."""
    found: list[str] = []
    copy, make = host._copy, DeviceCopy._make

    def copied(descriptor: int, files: Any, piece: Any) -> int:
        found.append(piece.entry.file)
        return copy(descriptor, files, piece)

    def made(self: DeviceCopy) -> Any:
        found.extend(shard.entry.file for shard in self._contents.shards)
        return make(self)

    monkeypatch.setattr(host, "_copy", copied)
    monkeypatch.setattr(DeviceCopy, "_make", made)
    return found


def add(writer: gear_data.Writer, number: int) -> None:
    rng = np.random.default_rng(number)
    for _ in range(LENGTH):
        writer.append(observations=rng.normal(size=3).astype(np.float32), actions=rng.integers(0, 9, 2), rewards=1.0)
    writer.end_episode(terminated=True)
    writer.seal()


def files(ds: gear_data.Dataset) -> list[str]:
    return [shard.entry.file for shard in ds.manifest.shards]


@pytest.mark.parametrize("residency", ["pinned", "device", "copied"])
def test_only_new_shards_are_loaded(
    gpu: StandInGpu, tmp_path: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch, residency: str
) -> None:
    """A refresh loads the shards that no earlier generation has, and the memory of evicted shards is freed."""
    if residency == "copied":
        residency = "pinned"
        monkeypatch.setenv(FALLBACK_VARIABLE, "copy")
        gpu.cupy.cuda.runtime.hostRegister = refuse
    with gear_data.Writer(tmp_path / "ds", max_steps=8 * LENGTH, shard_bytes=1024) as writer:
        for number in range(6):
            add(writer, number)
        ds = gear_data.open(tmp_path / "ds", residency)
        loader = on_gpu(ds, steps=None)
        batches = iter(loader)
        next(batches)
        assert sorted(set(loaded)) == sorted(files(ds)) and len(files(ds)) == 6
        gc.collect()
        first = held(gpu)
        for number in range(6, 20):
            known = files(ds)
            add(writer, number)
            loaded.clear()
            loader.refresh()
            ds = loader.dataset
            assert isinstance(ds, gear_data.Dataset)
            (new,) = set(files(ds)) - set(known)
            assert set(loaded) == {new}
            assert len(files(ds)) == min(8, number + 1)
        # The loader keeps the generations of the last 64 steps open.
        for _ in range(80):
            next(batches)
        gc.collect()
        assert eventually(lambda: held(gpu) == first * 8 // 6)
    plain = gear_data.SequenceLoader(gear_data.open(tmp_path / "ds"), **OPTIONS)
    same(from_device(gpu, on_gpu(ds)), copies(plain))


def refuse(address: int, size: int, flags: int) -> None:
    raise CudaError(NOT_SUPPORTED)


def held(gpu: StandInGpu) -> int:
    return int(gpu.cupy.mapped_bytes()) + sum(gpu.cupy.registered.values())
