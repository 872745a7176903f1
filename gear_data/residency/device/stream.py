"""The stream on which loaders work beside training, and memory of batches in torch's allocator.

torch's caching allocator owns the memory of batches. Idle memory is torch's own: training takes it when training needs
it, and torch frees it before torch reports too little memory. A pool of gear-data's could do neither, because torch
asks nobody else for memory.

Memory is allocated on the loaders' stream, so a batch is filled without a wait. `hand_over` tells the allocator about
the stream of the consumer. After the last tensor is gone, the allocator waits for that stream before it lends the
memory again.
"""

from __future__ import annotations

import functools

import torch

from gear_data.errors import DeviceMemoryError


@functools.cache
def loader_stream(device: int) -> torch.cuda.Stream:
    """Returns the stream of all loaders of this process on a device.

    One stream for all loaders, because the allocator keeps the memory of each stream apart: the memory of a finished
    pass serves the next one.
    """
    return torch.cuda.Stream(torch.device("cuda", device))  # type: ignore[no-untyped-call]


def batch_memory(size: int, device: torch.device) -> torch.Tensor:
    """Allocates memory for a batch on torch's current stream, uint8 [size].

    Raises:
        DeviceMemoryError: the device has too little memory.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceMemoryError(
            f"{size:,} bytes of device memory for a batch: {str(error).splitlines()[0]}",
            hint="take a smaller batch, a smaller prefetch or fewer columns, or end other GPU processes",
        ) from error


def hand_over(stream: torch.cuda.Stream, ready: torch.cuda.Event, *memory: torch.Tensor) -> None:
    """Hands memory over to a stream.

    The stream waits for an event. The memory is not used again before the stream has done all that it holds when the
    last tensor over the memory dies.

    Args:
        stream: of the consumer.
        ready: the event after which the memory is filled.
        memory: tensors, one of each allocation.
    """
    stream.wait_event(ready)
    for each in memory:
        each.record_stream(stream)
