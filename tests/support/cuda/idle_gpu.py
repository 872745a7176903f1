"""A stand-in for a GPU that receives operations and does nothing.

Its calls return at once, so the time of a batch is the time of gear-data's own Python.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gear_data.kernels.cuda import launcher as cuda
from tests.support.cuda.cupy_stand_in import CONSUMER, Streams, make_cupy


class _Idle:
    """A stream or an event on which nothing happens."""

    ptr = 9

    def __init__(self, **options: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


@contextmanager
def idle_gpu() -> Iterator[Counter[str]]:
    """Replaces CuPy and torch's view of the device.

    Yields the number of operations by kind: kernels by name, copies and fills.
    """
    operations: Counter[str] = Counter()

    def counted(kind: str) -> Callable[..., None]:
        def receive(*arguments: Any, **options: Any) -> None:
            operations[kind] += 1

        return receive

    fake = make_cupy(Streams(lambda stream: False), {}, 1 << 33)
    runtime = fake.cuda.runtime
    runtime.memcpyAsync, runtime.memsetAsync = counted("copy"), counted("fill")
    runtime.eventRecord = runtime.streamWaitEvent = lambda one, other: None
    fake.cuda.Stream = fake.cuda.Event = _Idle
    fake.RawModule = lambda **options: SimpleNamespace(get_function=counted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", fake)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=CONSUMER))
        # A copy to the device returns at once; a copy to pinned memory is the processor's work.
        copied = counted("copy")
        patch.setattr(torch.Tensor, "to", lambda tensor, **options: copied() or tensor)
        patch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
        cuda._kernels.cache_clear()
        yield operations
        cuda._kernels.cache_clear()
