"""SequenceLoader(device="cuda") on a stand-in for a GPU.

The batches equal the CPU's, in every order of the streams.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import ColorJitter, ExecutionOptions, Goals, SequenceLoader
from gear_data.errors import (
    DeviceError,
    DeviceMemoryError,
    InvalidArgumentError,
    MissingExtraError,
    UnknownNameError,
)
from gear_data.residency.device.buffers import BatchInputs, DeferredCounts
from gear_data.residency.device.memory import DeviceBuffer, Uploader
from gear_data.residency.device.reader import DeviceReader
from gear_data.residency.device.staging import StagingBuffer
from gear_data.selection.samplers import Weighted
from tests.support.cuda.gpu_stand_in import StandInGpu, stand_in
from tests.support.cuda.loader_checks import (
    EVERY_SAMPLER,
    OPTIONS,
    RESIDENCIES,
    STEPS,
    LoaderChecks,
    check,
    convert,
    copies,
    from_device,
    on_gpu,
    same,
)
from tests.support.cuda.streams import CONSUMER, ORDERS
from tests.support.feed.arguments import grouped
from tests.support.feed.data import convert_episodes, locomotion
from tests.support.running.eventually import eventually

pytestmark = pytest.mark.processes

every_order = pytest.mark.parametrize("gpu", ORDERS, indirect=True)


class TestLoaderOnStandIn(LoaderChecks):
    pass


@every_order
@pytest.mark.parametrize("residency", RESIDENCIES)
def test_every_residency_in_every_order_of_the_streams(gpu: StandInGpu, path: Path, residency: str) -> None:
    options = {**OPTIONS, "preset": "decision_transformer", "steps": 60}
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**options)), 60)
    same(from_device(gpu, on_gpu(RESIDENCIES[residency](path), **options), 60), expected)
    # If kernels read all columns in place, they draw the windows, too.
    drawn = {"gear_draw_windows"} if residency in ("pinned", "device") else set()
    assert set(gpu.cupy.launched) == {"gear_collect"} | drawn


DRAWING = {
    "uniform": {"gear_draw_windows"},
    "uniform-episode": {"gear_draw_windows"},
    "weighted": {"gear_draw_windows"},
    "weighted-step": {"gear_draw_windows"},
    "topk": {"gear_draw_windows"},
    "fifo": {"gear_draw_in_order"},
    # With few windows, the CPU stores the whole permutation.
    "shuffle": set(),
}


@every_order
@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
def test_windows_are_drawn_on_the_device(gpu: StandInGpu, path: Path, sampler: str) -> None:
    options = {**OPTIONS, "sampler": EVERY_SAMPLER[sampler]}
    on_cpu = SequenceLoader(gear_data.open(path), **grouped(**options))
    expected = copies(on_cpu, 40)
    loader = on_gpu(gear_data.open(path, residency="device"), **options)
    same(from_device(gpu, loader, 40), expected)
    assert set(gpu.cupy.launched) == {"gear_collect"} | DRAWING[sampler]
    assert loader.metrics()["pad_fraction"] == on_cpu.metrics()["pad_fraction"]


def test_the_cpu_draws_by_weights_of_steps(gpu: StandInGpu, path: Path) -> None:
    on_cpu = gear_data.open(path)
    sampler = Weighted(np.linspace(1, 2, on_cpu.num_steps), beta=[(0, 0.4), (9, 1.0)])
    expected = copies(SequenceLoader(on_cpu, **grouped(**OPTIONS, sampler=sampler)), 12)
    loader = on_gpu(gear_data.open(path, residency="device"), sampler=sampler)
    same(from_device(gpu, loader, 12), expected)
    assert set(gpu.cupy.launched) == {"gear_collect"}
    assert expected[0]["importance_weights"].dtype == torch.float64


def test_the_cpu_draws_after_an_update_of_weights(gpu: StandInGpu, path: Path) -> None:
    loader = on_gpu(gear_data.open(path, residency="device"), sampler=Weighted("length"), prefetch=0)
    batches = iter(loader)
    next(batches)
    assert gpu.cupy.launched == ["gear_draw_windows", "gear_collect"]
    loader.update_weights([0], [5.0])
    next(batches)
    assert gpu.cupy.launched == ["gear_draw_windows", "gear_collect", "gear_collect"]


@every_order
@pytest.mark.parametrize("residency", ["device", "tiered"])
def test_memory_is_reused_and_freed(gpu: StandInGpu, path: Path, residency: str) -> None:
    ds = RESIDENCIES[residency](path)
    held, pinned = gpu.taken, gpu.cupy.pinned
    loader = iter(on_gpu(ds))
    for _ in range(150):
        next(loader)
        # The device is at most a few batches behind.
        gpu.cupy.streams.finish(gpu.torch.current)
    assert gpu.torch.allocations < 25
    # Upload, sums and staging of each batch in progress.
    assert gpu.cupy.pinned - pinned < 3 * 25
    loader.close()
    del loader
    assert (gpu.taken, gpu.cupy.pinned) == (held, pinned)
    del ds
    assert (gpu.taken, gpu.cupy.pinned) == (0, 0)


OPERATIONS = {
    "uniform": {},
    "weighted": {"sampler": Weighted("length")},
    "no episode twice": {"sampler": Weighted("length", replacement=False)},
    "in order, over the end of an epoch": {"sampler": "fifo", "batch_size": 100},
    "drawn by the CPU": {"sampler": "shuffle"},
    "several batches at once": {"prefetch": 4},
}


@pytest.mark.parametrize("case", OPERATIONS)
@pytest.mark.parametrize("residency", ["pinned", "device"])
def test_a_batch_takes_at_most_three_operations(gpu: StandInGpu, path: Path, case: str, residency: str) -> None:
    loader = on_gpu(RESIDENCIES[residency](path), **{"prefetch": 0, "batch_size": 4, **OPERATIONS[case]})
    batches = iter(loader)
    next(batches)
    gpu.cupy.operations.clear()
    for _ in range(8):
        next(batches)
    batches.close()
    # The prefetch thread is ahead by a few batches.
    built = 8 if "prefetch" not in OPERATIONS[case] else gpu.cupy.operations.count("gear_collect")
    assert gpu.cupy.operations.count("gear_collect") == built
    assert len(gpu.cupy.operations) <= 3 * built
    assert "fill" not in gpu.cupy.operations
    # Nothing but numbers of windows is uploaded. The addresses of arrays are not.
    assert ("copy" in gpu.cupy.operations) == (
        case not in ("uniform", "in order, over the end of an epoch", "several batches at once")
    )


@every_order
def test_batches_that_are_read_on_several_streams(gpu: StandInGpu, path: Path) -> None:
    """Each batch waits for the stream on which it was handed over."""
    options = {**OPTIONS, "preset": "decision_transformer"}
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**options)), 40)
    batches = iter(on_gpu(gear_data.open(path, residency="device"), **options))
    got = []
    for number in range(40):
        gpu.torch.current = (7, 8, 9)[number % 3]
        got.append(gpu.read(next(batches)))
    batches.close()
    gpu.finish()
    same(got, expected)


def test_a_batch_that_is_read_on_a_recorded_stream(gpu: StandInGpu, path: Path) -> None:
    """`Tensor.record_stream` holds for batches, as for every tensor of torch."""
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS)), 12)
    batches = iter(on_gpu(gear_data.open(path, residency="device"), prefetch=0))
    got = []
    for _ in range(12):
        batch = next(batches)
        side = torch.cuda.Stream()
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream())
        side.wait_event(arrived)
        batch["observations"].record_stream(side)
        gpu.torch.current = side.cuda_stream
        got.append(gpu.read(batch))
        gpu.torch.current = CONSUMER
        del batch
        # The stream of the hand-over is done with the batch, and the other one is not.
        gpu.cupy.streams.finish(CONSUMER)
    gpu.finish()
    same(got, expected)


@every_order
def test_idle_memory_gives_way(gpu: StandInGpu, path: Path) -> None:
    """Training gets the memory of batches that are gone, and loaders get it back."""
    loader = on_gpu(gear_data.open(path, residency="device"), batch_size=64, prefetch=0)
    batches = iter(loader)
    kept = [next(batches) for _ in range(6)]
    one = next(iter(gpu.torch.lent.values())).size
    gpu.torch.device_bytes = gpu.taken
    with pytest.raises(DeviceMemoryError, match="bytes of device memory for a batch: CUDA out of memory") as error:
        next(batches)
    assert "smaller batch" in str(error.value.hint)
    del error  # its traceback holds this function's memory
    kept.clear()
    gpu.torch.current = 7
    training = gpu.torch.allocate(4 * one)
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    del training
    for _ in range(20):
        next(batches)


def test_a_budget_of_multiprocessors(gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, blocks = DeviceReader.launch, list[tuple[int, int, int]]()

    def record(self: DeviceReader, launcher: Any, *arguments: Any) -> None:
        blocks.append((launcher.blocks, launcher.collect_blocks(False), launcher.collect_blocks(True)))
        launch(self, launcher, *arguments)

    monkeypatch.setattr(DeviceReader, "launch", record)
    # Of the stand-in's two multiprocessors, every launch of the loader takes one: also those that collect goals.
    check(gpu, path, "device", sm_budget=0.5, preset="transitions", context=1, goals=Goals())
    assert set(blocks) == {(1, 1, 1)}
    with pytest.raises(InvalidArgumentError, match="sm_budget is 0"):
        SequenceLoader(gear_data.open(path), execution=ExecutionOptions(sm_budget=0))


class TestPinned:
    def test_registered_once_for_all_views_and_loaders(self, gpu: StandInGpu, path: Path) -> None:
        ds = gear_data.open(path, residency="pinned")
        assert len(gpu.cupy.registered) == 1
        first = from_device(gpu, on_gpu(ds))
        again = on_gpu(ds.split({"all": 1.0})["all"])
        same(from_device(gpu, again), first)
        assert len(gpu.cupy.registered) == 1
        assert eventually(lambda: gpu.taken == gpu.cupy.pinned == 0)
        del ds, again
        assert eventually(lambda: not gpu.cupy.registered)

    def test_another_discount(self, gpu: StandInGpu, path: Path) -> None:
        check(gpu, path, "pinned", discount=0.9, preset="corl")
        # The prefetch thread ends by itself.
        assert eventually(lambda: not gpu.cupy.registered)


@every_order
def test_columns_sent_in_pieces_arrive_whole(gpu: StandInGpu) -> None:
    sender = Uploader(64)
    given = [np.arange(count, dtype=np.uint8) for count in (1, 64, 200, 65)]
    buffers = [DeviceBuffer(len(values)) for values in given]
    for values, buffer in zip(given, buffers, strict=True):
        sender.send(values, buffer.address)
        values[:] = 0
    sender.finish()
    for count, buffer in zip((1, 64, 200, 65), buffers, strict=True):
        assert ctypes.string_at(buffer.address, count) == bytes(range(count))


def test_pinned_memory_is_not_used_again_after_the_cpu_drew_windows(gpu: StandInGpu) -> None:
    """The device drew the windows of the batch before. So it returned counts, which are known since then."""
    stream, target = torch.cuda.Stream(), DeviceBuffer(32)
    inputs = BatchInputs(4, 2, lambda: StagingBuffer(0))
    inputs.sums[:] = 1
    inputs.collected.record(stream)
    counts = inputs.valid_counts = DeferredCounts(inputs.sums.reshape(1, 2), inputs.collected)
    inputs.clear(target.address)
    assert counts.known and counts.wait() == [2]
    inputs.upload.put(np.arange(4))
    inputs.upload.send(gpu.cupy.cuda.runtime, stream.cuda_stream)
    inputs.collected.record(stream)
    inputs.clear(target.address)
    inputs.upload.put(np.full(4, 9))
    gpu.finish()
    assert list((ctypes.c_int64 * 4).from_address(target.address)) == [0, 1, 2, 3]


def test_torch_gives_up_memory_that_it_holds_idle(gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, memory = [1 << 30], gpu.cupy.cuda.Memory

    def allocate(size: int) -> Any:
        if idle:
            raise gpu.cupy.cuda.memory.OutOfMemoryError(f"out of memory allocating {size} bytes")
        return memory(size)

    monkeypatch.setattr(gpu.cupy.cuda, "Memory", allocate)
    with pytest.raises(DeviceMemoryError, match="8 bytes of device memory"):
        DeviceBuffer(8)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", idle.clear)
    assert DeviceBuffer(8).size == 8


def test_too_little_device_memory(monkeypatch: pytest.MonkeyPatch, path: Path, libraries: Path) -> None:
    with stand_in(monkeypatch, libraries, order="all late", device_bytes=1000) as gpu:
        with pytest.raises(DeviceMemoryError, match="bytes of device memory") as error:
            gear_data.open(path, residency="device")
        assert "budget" in str(error.value.hint)
        del error
        assert gpu.taken == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"preset": "gato"}, "makes tokens"),
        ({"pack": 60}, "pack= fills rows"),
        ({"transform": lambda batch, rng: batch}, "transform="),
        ({"augment": ColorJitter(hue=0.1)}, "images are augmented there"),
    ],
)
def test_batches_that_the_cpu_makes_are_logged(
    gpu: StandInGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], reason: str
) -> None:
    episodes = locomotion([5, 9], seed=1)
    for episode in episodes:
        episode["observations.image"] = np.zeros((len(episode["rewards"]), 8, 8, 3), np.uint8)
    dataset = gear_data.open(convert_episodes(episodes, tmp_path / "d").path, residency="device")
    with caplog.at_level(logging.WARNING):
        SequenceLoader(dataset, **grouped(device="cuda", **options))
    (record,) = caplog.records
    assert "collected on the CPU" in record.message
    assert reason in record.message


class TestArguments:
    def test_no_such_backend(self, path: Path) -> None:
        with pytest.raises(UnknownNameError, match="unknown backend 'gpu'"):
            SequenceLoader(gear_data.open(path), execution=ExecutionOptions(backend="gpu"))

    def test_a_backend_without_a_device(self, path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="collects in a GPU's memory"):
            SequenceLoader(gear_data.open(path), execution=ExecutionOptions(backend="cuda"))

    @pytest.mark.parametrize("residency", ["pinned", "device"])
    def test_without_cupy(self, monkeypatch: pytest.MonkeyPatch, path: Path, residency: str) -> None:
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(MissingExtraError, match=r"gear-data\[gpu\]"):
            gear_data.open(path, residency=residency)
        ds = gear_data.open(path)
        with pytest.raises(MissingExtraError, match=r"gear-data\[gpu\]"):
            ds.place(ds.residency_plan(1000, 1000))

    def test_columns_in_the_memory_of_another_device(
        self, gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ds = gear_data.open(path, residency="device")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(InvalidArgumentError, match="in the memory of CUDA device 0, and batches go to cuda:1"):
            SequenceLoader(ds, device="cuda:1")

    def test_a_plan_of_another_dataset(self, gpu: StandInGpu, path: Path, rollouts_path: Path) -> None:
        plan = gear_data.open(rollouts_path).residency_plan(10**6, 10**6)
        with pytest.raises(InvalidArgumentError, match="lies in no extent of the plan"):
            gear_data.open(path).place(plan)
        assert gpu.taken == 0

    def test_a_forked_child(self, gpu: StandInGpu, path: Path) -> None:
        loader = on_gpu(gear_data.open(path, residency="device"))
        child = os.fork()
        if not child:
            try:
                iter(loader)
            except DeviceError as error:
                os._exit(0 if "a forked child cannot" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


def test_pickling_without_a_gpu(gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pinned", "device", "tiered"):
        data = pickle.dumps(RESIDENCIES[name](path).with_discount(0.5))
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "cupy", None)
            again = pickle.loads(data)
            assert again.residency == name
            assert len(copies(SequenceLoader(again, **grouped(**OPTIONS)))) == STEPS


def test_an_iterator_that_is_not_finished_leaves_nothing(gpu: StandInGpu, path: Path) -> None:
    ds = gear_data.open(path, residency="device")
    held = gpu.taken
    for batch in itertools.islice(on_gpu(ds), 3):
        assert "observations" in batch
    del batch
    # The prefetch thread ends by itself.
    assert eventually(lambda: gpu.taken == held)


def test_datasets_share_columns_of_equal_contents(gpu: StandInGpu, path: Path, folder: Path) -> None:
    first = gear_data.open(path, residency="device")
    columns = first.store.device_columns()
    ctypes.memset(int(columns.addresses[0, 0]), 77, 8)  # a mark that only this copy has
    opened = {
        "again": gear_data.open(path, residency="device"),
        "pickled": pickle.loads(pickle.dumps(first)),
        "other data": gear_data.open(convert(12, folder / "two"), residency="device"),
        "other layout": first.place(first.residency_plan(1 << 13, 0)),
    }
    marked = [name for name, ds in opened.items() if _first_bytes(ds) == b"\x4d" * 8]
    assert marked == ["again", "pickled"]
    # Another discount changes one column, which is shared too.
    discounted = [ds.with_discount(0.5) for ds in (first, opened["again"])]
    one, other = (ds.store.device_columns().addresses for ds in discounted)
    index = discounted[0].schema.index("returns_to_go")
    assert (np.delete(one, index, 1) == np.delete(columns.addresses, index, 1)).all()
    ctypes.memset(int(one[0, index]), 77, 4)
    assert one[0, index] != other[0, index] and ctypes.string_at(int(other[0, index]), 4) == b"\x4d" * 4


def _first_bytes(ds: gear_data.Dataset) -> bytes:
    """Returns the first bytes on the device of the first column there."""
    addresses = ds.store.device_columns().addresses
    return ctypes.string_at(int(addresses[:, 0][addresses[:, 0] > 0][0]), 8) if addresses[:, 0].any() else b""
