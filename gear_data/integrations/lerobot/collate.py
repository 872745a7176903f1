"""FrameItem: an item of LeRobot's dataset class. A DataLoader makes a batch of items without a copy of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map


class FrameItem(dict[str, Any]):
    """Key -> tensor, text or list."""


def collate_items(items: Sequence[FrameItem], *, collate_fn_map: Any = None) -> dict[str, Any]:
    """Returns what torch's `default_collate` returns of some items.

    The tensors of items that were made together are rows of one tensor. That tensor is the batch, and not a copy.
    """
    return {key: _collated([item[key] for item in items], collate_fn_map) for key in items[0]}


def _collated(values: list[Any], collate_fn_map: Any) -> Any:
    if all(type(each) is torch.Tensor for each in values):
        whole = rows_of_one(values)
        if whole is not None:
            return whole
    return collate(values, collate_fn_map=collate_fn_map)


def rows_of_one(rows: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Returns the tensor whose rows these are, in order; None: they are not."""
    first = rows[0]
    memory, size = first.untyped_storage().data_ptr(), first.numel()
    for number, row in enumerate(rows):
        if (
            row.shape != first.shape
            or row.dtype != first.dtype
            or not row.is_contiguous()
            or row.untyped_storage().data_ptr() != memory
            or row.storage_offset() != first.storage_offset() + number * size
        ):
            return None
    return first.as_strided((len(rows), *first.shape), (size, *first.stride()))


default_collate_fn_map[FrameItem] = collate_items
