"""Copies of a batch's tensors to another device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gear_data.loaders.builders.batch import Batch


def to_device(batch: Batch, device: torch.device, *, pin: bool) -> Batch:
    """Copies a batch of the CPU to a device.

    Args:
        batch: tensors of the CPU.
        device: the device; for `cpu`, the tensors are only pinned.
        pin: True copies through pinned memory, so that the CPU continues during the copy.
    """
    if pin:
        batch = {key: map_tensors(value, torch.Tensor.pin_memory) for key, value in batch.items()}
    if device.type != "cpu":
        move = functools.partial(torch.Tensor.to, device=device, non_blocking=True)
        batch = {key: map_tensors(value, move) for key, value in batch.items()}
    return batch


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies `change` to every tensor in a value of a batch.

    Lists of text stay unchanged.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    return [map_tensors(each, change) for each in value] if isinstance(value, list) else value
