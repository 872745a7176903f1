"""Generations of a dataset that grows, in memory that a GPU reads."""

from __future__ import annotations

import gc
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.residency import host
from gear_data.residency.device.columns import DeviceCopy
from gear_data.residency.device.registration import FALLBACK_VARIABLE
from tests.support.cuda.gpu_stand_in import StandInGpu
from tests.support.cuda.host_registration import NOT_SUPPORTED
from tests.support.cuda.loader_checks import OPTIONS, copies, from_device, on_gpu, same
from tests.support.cuda.streams import CudaError
from tests.support.running.eventually import eventually

pytestmark = pytest.mark.processes

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


@pytest.mark.parametrize("discount", [None, 0.9])
def test_a_placed_dataset_follows(gpu: StandInGpu, tmp_path: Path, loaded: list[str], discount: float | None) -> None:
    """A refresh places new episodes within the plan's budgets. Others stay where they are."""
    with gear_data.Writer(tmp_path / "ds", max_steps=8 * LENGTH, shard_bytes=1024) as writer:
        for number in range(6):
            add(writer, number)
        opened = gear_data.open(tmp_path / "ds")
        opened = opened if discount is None else opened.with_discount(discount)
        # Of each tier two episodes.
        budget = 2 * LENGTH * sum(column.row_bytes for column in opened.schema.fixed_columns)
        ds = opened.place(opened.residency_plan(budget, budget))
        loader, plain = on_gpu(ds, steps=None), gear_data.SequenceLoader(opened, **OPTIONS, prefetch=0)
        batches, expected = iter(loader), iter(plain)
        compare(gpu, batches, expected, 3)
        assert set(loaded) >= set(files(ds))
        gc.collect()
        first = held(gpu)
        for number in range(6, 20):
            add(writer, number)
            loaded.clear()
            from_step = loader.refresh()
            placed = {file for file in loaded if file.startswith("shards/")}
            plain.refresh(from_step)
            known, ds = ds, loader.dataset
            assert isinstance(ds, gear_data.Dataset) and ds.residency == "tiered"
            (new,) = set(files(ds)) - set(files(known))
            assert placed == {new}
            before, after = addresses(known), addresses(ds)
            assert all(after[file] == before[file] for file in after.keys() & before.keys())
            plan = ds.store._plan
            assert plan is not None and max(plan.bytes("device"), plan.bytes("pinned")) <= budget
            compare(gpu, batches, expected, 3)
        # All episodes of the first generation have left, and new ones have their places.
        assert min(plan.bytes("device"), plan.bytes("pinned")) > budget // 2
        compare(gpu, batches, expected, 80)
        again = pickle.loads(pickle.dumps(ds))
        assert addresses(again) == addresses(ds)
        del known, before, after, again
        gc.collect()
        assert eventually(lambda: held(gpu) <= first)
        compare(gpu, iter(on_gpu(ds)), iter(gear_data.SequenceLoader(opened.refresh(), **OPTIONS)), 5)


def addresses(ds: gear_data.Dataset) -> dict[str, list[Any]]:
    """Returns the addresses of the columns of each shard's extents."""
    columns, names = ds.store.device_columns(), files(ds)
    return {name: columns.addresses[columns.shard == shard].tolist() for shard, name in enumerate(names)}


def compare(gpu: StandInGpu, batches: Iterator[Any], expected: Iterator[Any], count: int) -> None:
    """Compares the next batches of a device with those of the CPU."""
    got = [gpu.read(batch) for batch in itertools.islice(batches, count)]
    gpu.finish()
    same(got, copies(expected, count))  # type: ignore[arg-type]


def refuse(address: int, size: int, flags: int) -> None:
    raise CudaError(NOT_SUPPORTED)


def held(gpu: StandInGpu) -> int:
    return int(gpu.cupy.mapped_bytes()) + sum(gpu.cupy.registered.values())
