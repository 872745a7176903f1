"""torch's tensors over a batch's memory, and their way to a device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.collection.output import BFLOAT16
from gear_data.errors import DeviceError
from gear_data.loaders.builders.batch import Batch
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.values import map_arrays


def torch_framework(device: str | torch.device, pin_memory: bool | None) -> Framework:
    """Returns the framework of batches of tensors on a device.

    Raises:
        DeviceError: this machine does not have the device, or it cannot pin memory.
    """
    found = check_device(device)
    pin = check_pin_memory(pin_memory, found)
    deliver = functools.partial(to_device, device=found, pin=pin) if pin or found.type != "cpu" else None
    return Framework(
        "torch", convert=to_tensors, convert_in_worker=to_shared_tensors, deliver=deliver, device=found, pin=pin
    )


def check_device(device: str | torch.device) -> torch.device:
    """Returns the torch device; raises DeviceError if this machine does not have it."""
    try:
        result = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(
            f"unknown device {device!r}", hint="use 'cpu', 'cuda' or 'cuda:N'; framework='jax' takes a sharding"
        ) from error
    if result.type not in ("cpu", "cuda"):
        raise DeviceError(
            f"device is {device!r}; batches go only to 'cpu' or 'cuda'",
            hint="give device='cpu', and copy the batches yourself",
        )
    if result.type == "cuda" and (result.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {device!r} does not exist: torch sees {torch.cuda.device_count()} CUDA devices",
            hint="use device='cpu'; 'gear-data doctor' shows what is missing",
        )
    return result


def check_pin_memory(pin_memory: bool | None, device: torch.device) -> bool:
    """Returns whether to pin memory; None pins it for a GPU.

    Raises:
        DeviceError: `pin_memory` is True, and torch sees no GPU.
    """
    if pin_memory and not torch.cuda.is_available():
        raise DeviceError("pin_memory=True needs a GPU, and torch sees none", hint="leave pin_memory out")
    return device.type == "cuda" if pin_memory is None else pin_memory


def to_tensors(batch: Batch) -> Batch:
    """Returns a batch with tensors over the memory of its NumPy arrays."""
    plain, view = np.ndarray, torch.from_numpy
    # In line for the usual arrays: a batch has about eight, and takes some 50 microseconds.
    return {
        key: view(value) if value.__class__ is plain and value.dtype is not BFLOAT16 else _tensors(value)
        for key, value in batch.items()
    }


def to_shared_tensors(batch: Batch) -> Batch:
    """Returns `to_tensors` of a batch. torch passes those over `shared_memory` to other processes without a copy."""
    return {key: map_arrays(value, np.ndarray, _shared_tensor) for key, value in batch.items()}


def shared_memory(size: int) -> npt.NDArray[np.uint8]:
    """Returns new memory that torch passes to other processes without a copy, uint8 [size]."""
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _tensors(value: Any) -> Any:
    return map_arrays(value, np.ndarray, _tensor)


def _tensor(array: Any) -> torch.Tensor:
    # torch takes no bfloat16 from NumPy.
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _shared_tensor(array: Any) -> torch.Tensor:
    owner, tensor = array, _tensor(array)
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, torch.Tensor):
        return tensor
    first = tensor.data_ptr() - owner.data_ptr()
    return owner[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def to_device(batch: Batch, device: torch.device, *, pin: bool) -> Batch:
    """Copies a batch of the CPU to a device.

    Args:
        batch: tensors of the CPU.
        device: the device; for `cpu`, the tensors are only pinned.
        pin: True copies through pinned memory, so that the CPU continues during the copy.
    """
    if pin:
        batch = {key: map_arrays(value, torch.Tensor, torch.Tensor.pin_memory) for key, value in batch.items()}
    if device.type != "cpu":
        move = functools.partial(torch.Tensor.to, device=device, non_blocking=True)
        batch = {key: map_arrays(value, torch.Tensor, move) for key, value in batch.items()}
    return batch
