"""A stand-in for torch.cuda: streams, events and the caching allocator.

The allocator behaves as torch's does. Memory belongs to the stream on which it was allocated, and returns to that
stream when its last tensor dies; if other streams were recorded, after the work that they hold at that time. Before it
reports too little memory, it waits for these streams, and frees all memory that no tensor holds.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.cuda.streams import CONSUMER, Raw, Record, Streams

_ROUND = 512


class _Block:
    """A piece of device memory.

    streams: handles of the streams that were recorded for it.
    """

    def __init__(self, size: int, stream: int) -> None:
        self.raw, self.size, self.stream = Raw(size, 0xA5), size, stream
        self.streams: set[int] = set()
        self.waits_for: list[Record] = []


class _Memory(np.ndarray):
    """Memory whose death is noticed."""


class TorchStandIn:
    """The stand-in, with a record of its use.

    Args:
        streams: of the device.
        device_bytes: of the device.
        taken: returns the bytes that others hold.

    Attributes:
        device_bytes: of the device.
        current: the handle of torch's current stream, outside `torch.cuda.stream`.
        lent: address -> a block that a tensor holds.
        cached: blocks that no tensor holds.
        allocations: blocks that were taken from the device.
    """

    def __init__(self, streams: Streams, device_bytes: int, taken: Callable[[], int]) -> None:
        self._streams, self.device_bytes, self._taken = streams, device_bytes, taken
        self._lock = threading.RLock()
        self._local = threading.local()
        self.current = CONSUMER
        self.lent: dict[int, _Block] = {}
        self.cached: list[_Block] = []
        self.allocations = 0

    def current_stream(self) -> int:
        return getattr(self._local, "stream", None) or self.current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._local.stream = getattr(self._local, "stream", None), stream.cuda_stream
        try:
            yield
        finally:
            self._local.stream = before

    def allocate(self, size: int) -> torch.Tensor:
        """Returns uint8 [size], memory of the current stream."""
        stream, rounded = self.current_stream(), -(-size // _ROUND) * _ROUND
        with self._lock:
            block = self._usable(rounded, stream)
            if block is None and rounded > self._left():
                self._free_cached()
            if block is None:
                if rounded > self._left():
                    raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.\nand more")
                block = _Block(rounded, stream)
                self.allocations += 1
            self.lent[block.raw.ptr] = block
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(block.raw.ptr)).view(_Memory)
        weakref.finalize(memory, self._free, block).atexit = False
        return torch.from_numpy(memory)

    def record(self, tensor: torch.Tensor, stream: Any) -> None:
        address = tensor.data_ptr()
        (block,) = (each for at, each in self.lent.copy().items() if at <= address < at + each.size)
        block.streams.add(stream.cuda_stream)

    def _left(self) -> int:
        own = sum(block.size for block in (*self.lent.values(), *self.cached))
        return self.device_bytes - self._taken() - own

    def _usable(self, size: int, stream: int) -> _Block | None:
        for number, block in enumerate(self.cached):
            if (block.size, block.stream) == (size, stream) and all(record.done for record in block.waits_for):
                return self.cached.pop(number)
        return None

    def _free_cached(self) -> None:
        for block in self.cached:
            for record in block.waits_for:
                self._streams.complete(record)
        # cudaFree waits for the whole device.
        self._streams.finish_all()
        for block in self.cached:
            block.raw.fill(0x5A)
        self.cached.clear()

    def _free(self, block: _Block) -> None:
        with self._lock:
            block.waits_for = [self._streams.record(stream) for stream in sorted(block.streams - {block.stream})]
            block.streams.clear()
            del self.lent[block.raw.ptr]
            self.cached.append(block)


def patch_torch(patch: pytest.MonkeyPatch, found: TorchStandIn, streams: Streams) -> None:
    """Replaces torch.cuda, and the functions of torch that allocate on a device."""
    handles = itertools.count(1000)

    class Stream:
        def __init__(self, device: Any = None, *, handle: int | None = None) -> None:
            self.cuda_stream = next(handles) if handle is None else handle
            self.device = device

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

        def __ne__(self, other: object) -> bool:
            # As torch's: a comparison with None is False, whichever it is.
            return other is not None and not self == other

        def __hash__(self) -> int:
            return hash(self.cuda_stream)

        def wait_event(self, event: Event) -> None:
            streams.wait(self.cuda_stream, event.last)

        def wait_stream(self, other: Stream) -> None:
            streams.wait(self.cuda_stream, streams.record(other.cuda_stream))

        def synchronize(self) -> None:
            streams.finish(self.cuda_stream)

    class Event:
        def __init__(self) -> None:
            self.last: Record | None = None

        def record(self, stream: Stream) -> None:
            self.last = streams.record(stream.cuda_stream)

        def query(self) -> bool:
            return self.last is None or self.last.done

        def synchronize(self) -> None:
            streams.complete(self.last)

    real_empty = torch.empty

    def empty(*size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda":
            return real_empty(*size, device=device, **options)
        assert options == {"dtype": torch.uint8}
        return found.allocate(*size)

    real_stack = torch.stack

    def stack(tensors: Any, dim: int = 0, *, out: torch.Tensor | None = None) -> Any:
        # Only the loader passes `out`, with memory of the device.
        if out is None:
            return real_stack(tensors, dim)
        streams.add(found.current_stream(), lambda: real_stack(tensors, dim, out=out))
        return out

    patch.setattr(torch, "empty", empty)
    patch.setattr(torch, "stack", stack)
    patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: found.record(tensor, stream))
    patch.setattr(torch.cuda, "Stream", Stream)
    patch.setattr(torch.cuda, "Event", Event)
    patch.setattr(torch.cuda, "stream", found.stream)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    # Lightning lets torch answer from `device_count`. Its optimizers would then ask for the driver, which is missing.
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(device, handle=found.current_stream()))
