"""Framework: how a batch of NumPy arrays becomes a batch of torch, NumPy or JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch

if TYPE_CHECKING:
    import torch

Change = Callable[[Batch], Batch]


@dataclass(frozen=True)
class Framework:
    """A framework, and the steps from collected arrays to its batch.

    A builder collects, decodes and makes tokens in NumPy. After that come `convert`, the user's `transform`, `place`
    and `deliver`, in this order. None skips a step.

    Attributes:
        name: one of `gear_data.loaders.frameworks.resolve.FRAMEWORKS`.
        convert: turns NumPy arrays into the arrays for `transform`.
        convert_in_worker: the same in a DataLoader's worker, whose cameras are in memory that other processes share.
            None: `convert`.
        place: puts the batch in its place, in the thread that builds it.
        deliver: puts the batch in its place, in the consumer's thread.
        device: torch's device of the batch; None with other frameworks.
        pin: whether batches are copied to pinned memory.
        rank: this process's rank and the number of ranks, where the framework decides them; else None.
        sharded: whether a sharding decides which rows this process has.
        multiple: every global batch must have a multiple of this many rows.
    """

    name: str
    convert: Change | None = None
    convert_in_worker: Change | None = None
    place: Change | None = None
    deliver: Change | None = None
    device: torch.device | None = None
    pin: bool = False
    rank: tuple[int, int] | None = None
    sharded: bool = False
    multiple: int = 1

    @property
    def spans_processes(self) -> bool:
        """Whether an array has rows of several processes, whose arrays must then have one shape."""
        return self.sharded and self.rank is not None and self.rank[1] > 1

    def in_worker(self) -> Framework:
        """Returns the framework of a DataLoader's worker."""
        return self if self.convert_in_worker is None else replace(self, convert=self.convert_in_worker)

    def check_last_batch(self, rows: int) -> None:
        """Raises InvalidArgumentError if the last batch of a pass cannot be divided.

        rows: of the last global batch.
        """
        if rows % self.multiple:
            raise InvalidArgumentError(
                f"the last batch has {rows} rows, and the sharding has {self.multiple} parts",
                hint="give steps= instead of epochs=, so that every batch is whole",
            )
