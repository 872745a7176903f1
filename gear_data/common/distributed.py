"""Values that the ranks of torch.distributed exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def rank_and_world_size(default: tuple[int, int] = (0, 1)) -> tuple[int, int]:
    """Returns (rank, world size) of torch.distributed.

    Without an initialised process group it returns the default.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return default


def is_distributed() -> bool:
    """Returns whether this process is one of several ranks."""
    return rank_and_world_size()[1] > 1


def compute_on_rank_zero(compute: Callable[[], T]) -> T:
    """Returns rank 0's `compute()` on every rank. Every rank must call it.

    An exception of `compute` is raised on every rank. Values that each rank computed could differ: Polars' `mean` and
    `std` depend on its number of threads.
    """
    if not is_distributed():
        return compute()
    result: list[Any] = [None, None]
    if torch.distributed.get_rank() == 0:
        try:
            result[0] = compute()
        except Exception as error:
            result[1] = error
    torch.distributed.broadcast_object_list(result, src=0)
    if result[1] is not None:
        raise result[1]
    value: T = result[0]
    return value


def all_gather(value: T) -> list[T]:
    """Returns every rank's value, in rank order. Every rank must call it."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values
