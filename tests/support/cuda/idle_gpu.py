"""A stand-in for a GPU that receives operations and does nothing.

Its calls return at once, so the time of a batch is the time of gear-data's own Python.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gear_data.kernels.cuda import launcher as cuda
from gear_data.residency.device.stream import loader_stream
from tests.support.cuda.cupy_stand_in import make_cupy
from tests.support.cuda.streams import CONSUMER, Streams


class _Idle:
    """A stream or an event on which nothing happens."""

    ptr = cuda_stream = CONSUMER

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


@contextmanager
def idle_gpu() -> Iterator[Counter[str]]:
    """Replaces CuPy and torch.cuda.

    Yields the number of operations that the GPU received, by kind: `kernel`, `copy` and `fill`. Records of events and
    waits for events are not among them.
    """
    operations: Counter[str] = Counter()

    def counted(kind: str) -> Callable[..., None]:
        def receive(*arguments: Any, **options: Any) -> None:
            operations[kind] += 1

        return receive

    fake = make_cupy(Streams(lambda stream: False), {}, 1 << 33)
    runtime, idle = fake.cuda.runtime, _Idle()
    runtime.memcpyAsync, runtime.memsetAsync = counted("copy"), counted("fill")
    fake.cuda.Stream = fake.cuda.ExternalStream = fake.cuda.Event = _Idle
    fake.cuda.get_current_stream = lambda: idle
    fake.cuda.driver.launchKernel = counted("kernel")
    kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=0))
    fake.RawModule = lambda **options: SimpleNamespace(get_function=lambda name: kernel)
    copied, empty = counted("copy"), torch.empty

    def to_device(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        copied()
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", fake)
        patch.setattr(torch, "empty", lambda *size, device=None, **options: empty(*size, dtype=options["dtype"]))
        patch.setattr(torch.Tensor, "to", to_device)
        # A copy to pinned memory is the processor's work.
        patch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        for name in ("Stream", "Event"):
            patch.setattr(torch.cuda, name, _Idle)
        patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: idle)
        for cached in (cuda._compiled, loader_stream):
            cached.cache_clear()
        yield operations
        for cached in (cuda._compiled, loader_stream):
            cached.cache_clear()
