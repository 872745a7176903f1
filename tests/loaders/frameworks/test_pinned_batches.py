"""Batches that the CPU collects in pinned memory.

The copies of the stand-in to the device run late.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gear_data import SequenceLoader
from gear_data.errors import DeviceError, HostMemoryError
from gear_data.loaders.frameworks.pinned_batches import pinned_memory
from tests.support.cuda.streams import CONSUMER, ORDERS, Streams
from tests.support.cuda.torch_stand_in import TorchStandIn, patch_torch
from tests.support.feed.arguments import grouped

OPTIONS: dict[str, Any] = {"batch_size": 6, "context": 5, "seed": 4, "steps": 40, "window_ids": True}


@pytest.fixture(params=["all late", "consumer first"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A device whose copies read pinned memory when their turn comes.

    Collects the copies that the CPU makes.
    """
    streams = Streams(ORDERS[request.param])
    patch_torch(monkeypatch, TorchStandIn(streams, 1 << 30, lambda: 0), streams)
    pinned: list[tuple[int, int]] = []
    found = SimpleNamespace(streams=streams, pinned=pinned, cpu_copies=[], pinned_bytes=0, left=1 << 30)
    empty, clone = torch.empty, torch.Tensor.clone

    def pinned_empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory and size[0] > found.left:
            raise RuntimeError("CUDA error: out of memory\nand more")
        if not pin_memory:
            return empty(*size, **options)
        memory = np.empty(size, np.uint8)
        place = memory.ctypes.data, size[0]
        pinned.append(place)
        found.pinned_bytes += size[0]
        # Later, other arrays may lie there.
        weakref.finalize(memory, pinned.remove, place)
        return torch.from_numpy(memory)

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        if any(first <= tensor.data_ptr() < first + size for first, size in pinned):
            return tensor
        # torch keeps memory that it pinned itself until it is copied.
        found.cpu_copies.append(clone(tensor))
        return found.cpu_copies[-1]

    def to_device(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        assert options == {"device": torch.device("cuda"), "non_blocking": True}
        target, source = np.zeros(tuple(tensor.shape), tensor.numpy().dtype), tensor.numpy()
        # An address: the copy of a real device keeps no memory alive.
        address, shape, strides, dtype = source.ctypes.data, source.shape, source.strides, source.dtype

        def copy() -> None:
            size = source_bytes(shape, strides, dtype)
            raw = (np.ctypeslib.ctypes.c_uint8 * size).from_address(address)
            target[...] = np.ndarray(shape, dtype, raw, strides=strides)

        streams.add(CONSUMER, copy)
        return torch.from_numpy(target)

    monkeypatch.setattr(torch, "empty", pinned_empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to_device)
    yield found
    streams.close()


def source_bytes(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + dtype.itemsize


def expected_of(dataset: Any, **options: Any) -> list[dict[str, bytes]]:
    loader = SequenceLoader(dataset, **grouped(framework="numpy", **options))
    return [{key: array.tobytes() for key, array in batch.items()} for batch in loader]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_not_overwritten_before_they_are_copied(dataset, gpu, prefetch):
    options = {**OPTIONS, "prefetch": prefetch}
    expected = expected_of(dataset, **options)
    batches = list(SequenceLoader(dataset, **grouped(device="cuda", backend="cpu", **options)))
    gpu.streams.finish_all()
    found = [{key: tensor.numpy().tobytes() for key, tensor in batch.items()} for batch in batches]
    assert found == expected


def test_collected_arrays_are_not_copied_on_the_cpu(dataset, gpu):
    for batch in SequenceLoader(dataset, **grouped(device="cuda", backend="cpu", **{**OPTIONS, "window_ids": False})):
        assert "observations" in batch
    # One number a window, which no kernel collects.
    assert gpu.pinned_bytes and {tuple(each.shape) for each in gpu.cpu_copies} == {(OPTIONS["batch_size"],)}


def test_the_end_of_an_iteration_waits_for_its_copies(dataset, gpu):
    expected = expected_of(dataset, **OPTIONS)[:3]
    iterator = iter(SequenceLoader(dataset, **grouped(device="cuda", backend="cpu", prefetch=0, **OPTIONS)))
    batches = [next(iterator) for _ in range(3)]
    iterator.close()
    del iterator
    gc.collect()
    # Without a call of the streams: the end has waited.
    assert [{key: tensor.numpy().tobytes() for key, tensor in batch.items()} for batch in batches] == expected


def test_too_little_memory_is_a_typed_error(dataset, gpu):
    gpu.left = 100
    with pytest.raises(HostMemoryError, match="pinned memory are needed for batches: CUDA error: out of memory"):
        next(iter(SequenceLoader(dataset, **grouped(device="cuda", backend="cpu", **OPTIONS))))


def test_another_error_of_cuda_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*size: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.\nand more")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(DeviceError, match=r"not pinned: Cannot re-initialize CUDA in forked subprocess\.\n.*spawn"):
        pinned_memory(100)
