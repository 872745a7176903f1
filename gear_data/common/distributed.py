"""Values that the ranks of a run exchange.

A rank is a process of torch.distributed or of JAX.

A process that has initialised either has imported it. So nothing is imported here.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from gear_data.errors import ClusterError

T = TypeVar("T")


def rank_and_world_size(default: tuple[int, int] = (0, 1)) -> tuple[int, int]:
    """Returns (rank, world size) of torch.distributed, or of jax.distributed.

    If neither is initialised, it returns the default. If both are, torch.distributed counts.
    """
    if (torch_ranks := _torch_ranks()) is not None:
        return torch_ranks.get_rank(), torch_ranks.get_world_size()
    if (jax := _initialised_jax()) is not None:
        return jax.process_index(), jax.process_count()
    return default


def is_distributed() -> bool:
    """Returns whether this process is one of several ranks."""
    if (torch_ranks := _torch_ranks()) is not None:
        return bool(torch_ranks.get_world_size() > 1)
    return "jax" in sys.modules and rank_and_world_size()[1] > 1


def compute_on_rank_zero(compute: Callable[[], T]) -> T:
    """Returns rank 0's `compute()` on every rank. Every rank must call it.

    An exception of `compute` is raised on every rank. Values that each rank computed could differ: Polars' `mean` and
    `std` depend on its number of threads.

    Raises:
        ClusterError: a rank has ended.
    """
    if not is_distributed():
        return compute()
    result: list[Any] = [None, None]
    if rank_and_world_size()[0] == 0:
        try:
            result[0] = compute()
        except Exception as error:
            result[1] = error
    with _exchanging():
        if (torch_ranks := _torch_ranks()) is not None:
            torch_ranks.broadcast_object_list(result, src=0)
        else:
            result = _gather_by_jax(result)[0]
    if result[1] is not None:
        raise result[1]
    value: T = result[0]
    return value


def all_gather(value: T) -> list[T]:
    """Returns every rank's value, in rank order. Every rank must call it.

    Raises:
        ClusterError: a rank has ended.
    """
    if not is_distributed():
        return [value]
    torch_ranks = _torch_ranks()
    with _exchanging():
        if torch_ranks is None:
            return _gather_by_jax(value)
        values: list[Any] = [None] * torch_ranks.get_world_size()
        torch_ranks.all_gather_object(values, value)
    return values


@contextmanager
def _exchanging() -> Iterator[None]:
    """Explains errors of ranks that exchange values."""
    try:
        yield
    except RuntimeError as error:  # of torch's backends, and of JAX
        raise ClusterError(
            f"the ranks of the run cannot exchange values: {error}",
            hint="see the logs of the other ranks: one of them may have ended; then start the run again",
        ) from error


def _torch_ranks() -> Any:
    """Returns torch.distributed if it is initialised, else None."""
    module = sys.modules.get("torch.distributed")
    # A torch that was built without torch.distributed has the module, without this function.
    initialised = getattr(module, "is_initialized", None)
    return module if initialised is not None and initialised() else None


def _initialised_jax() -> Any:
    """Returns jax if jax.distributed is initialised, else None."""
    module = sys.modules.get("jax")
    return module if module is not None and module.distributed.is_initialized() else None


def _gather_by_jax(value: T) -> list[T]:
    """Gathers the values of all processes as bytes, because JAX gathers only arrays."""
    from jax.experimental.multihost_utils import process_allgather

    own = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = process_allgather(np.int32(len(own))).tolist()
    row = np.zeros(max(sizes), np.uint8)
    row[: len(own)] = own
    rows = np.asarray(process_allgather(row))
    # The processes of one run trust each other, as in torch.distributed, which pickles objects too.
    return [pickle.loads(each[:size].tobytes()) for each, size in zip(rows, sizes, strict=True)]  # noqa: S301
