"""The peers of section (i): other ways to make batches on a GPU.

Each function returns an endless iterator of batches. Peers do less than a loader: windows may cross the end of an
episode, where the mask is false, and padding is not filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.residency.device.memory import PinnedBuffer

DEVICE = "cuda"
#: Worker processes of a DataLoader, which make whole batches.
WORKERS = 8

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Steps:
    """Steps of equally long episodes, and the size of a batch.

    Attributes:
        columns: name -> [N, ...].
        episode: steps of an episode.
        batch, context: windows of a batch, and steps of a window.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    episode: int
    batch: int
    context: int

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def _indexed(flat: Mapping[str, torch.Tensor], steps: Steps) -> Iterator[Batch]:
    """Indexes tensors whose rows the GPU reads."""
    offsets = torch.arange(steps.context, device=DEVICE)
    left = steps.episode - torch.arange(len(steps), device=DEVICE) % steps.episode
    while True:
        start = torch.randint(len(steps) - steps.context, (steps.batch,), device=DEVICE)
        rows = start[:, None] + offsets
        batch = {name: column[rows] for name, column in flat.items()}
        batch["mask"] = offsets < left[start][:, None]
        yield batch


def on_device(steps: Steps) -> Iterator[Batch]:
    """Indexes tensors in the GPU's memory: `flat[start[:, None] + arange]`."""
    return _indexed({name: torch.from_numpy(column).to(DEVICE) for name, column in steps.columns.items()}, steps)


def pinned_view(steps: Steps) -> Iterator[Batch]:
    """Indexes CUDA tensors over pinned memory of this machine."""
    return _indexed({name: _view(column) for name, column in steps.columns.items()}, steps)


def _view(column: npt.NDArray[Any]) -> torch.Tensor:
    import cupy

    pinned = PinnedBuffer(column.nbytes)
    pinned.array()[:] = column.reshape(-1).view(np.uint8)
    memory = cupy.cuda.UnownedMemory(pinned.address, pinned.size, pinned, 0)
    array = cupy.ndarray((pinned.size,), np.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    whole: torch.Tensor = torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=-1))
    return whole.view(torch.from_numpy(column[:0]).dtype).view(column.shape)


def torchrl(steps: Steps) -> Iterator[Batch]:
    """TorchRL's SliceSampler over LazyTensorStorage in the GPU's memory."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

    count = len(steps)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(count, device=DEVICE),
        sampler=SliceSampler(
            slice_len=steps.context, traj_key="episode", cache_values=True, truncated_key=None, init_key=None
        ),
        batch_size=steps.batch * steps.context,
    )
    columns = {name: torch.from_numpy(column) for name, column in steps.columns.items()}
    columns["episode"] = torch.arange(count) // steps.episode
    buffer.extend(TensorDict(columns, batch_size=[count]))
    while True:
        sample = buffer.sample()
        yield {name: sample[name].view(steps.batch, steps.context, *sample[name].shape[1:]) for name in steps.columns}


class _Windows(torch.utils.data.IterableDataset[Batch]):
    """Whole batches by NumPy, in a worker process."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[Batch]:
        steps, worker = self._steps, torch.utils.data.get_worker_info()
        rng = np.random.default_rng(0 if worker is None else worker.id)
        offsets = np.arange(steps.context)
        while True:
            start = rng.integers(0, len(steps) - steps.context, steps.batch)
            rows = start[:, None] + offsets
            batch = {name: torch.from_numpy(column[rows]) for name, column in steps.columns.items()}
            batch["mask"] = torch.from_numpy(offsets < (steps.episode - start % steps.episode)[:, None])
            yield batch


def data_loader(steps: Steps) -> Iterator[Batch]:
    """A DataLoader with workers, pinned memory and copies that do not block."""
    loader = torch.utils.data.DataLoader(
        _Windows(steps), batch_size=None, num_workers=WORKERS, pin_memory=DEVICE == "cuda"
    )
    for batch in loader:
        yield {name: value.to(DEVICE, non_blocking=True) for name, value in batch.items()}


INDEXING, TORCHRL = "torch indexing, device", "TorchRL SliceSampler, LazyTensorStorage on the device"
#: The DataLoader comes first: its workers are forked before this process uses the GPU and has threads.
PEERS: dict[str, Callable[[Steps], Iterator[Batch]]] = {
    "DataLoader, workers, pin_memory, non_blocking": data_loader,
    INDEXING: on_device,
    "torch indexing, view of pinned memory": pinned_view,
    TORCHRL: torchrl,
}
