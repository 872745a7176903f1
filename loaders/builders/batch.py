"""BatchBuilder: the interface that builds the batch of any step, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gear_data.selection.windows import Int64Array

if TYPE_CHECKING:
    from gear_data.loaders.passes.layout import PassLayout
    from gear_data.residency.device.buffers import DeferredCount

#: Key -> tensor [B, ...]. A preset without padding gives lists of B tensors; a column of text gives lists of B lists.
Batch = dict[str, Any]
Transform = Callable[[Batch, np.random.Generator], Batch]


@dataclass(slots=True)  # not frozen: see Windows
class BuiltBatch:
    """A batch, and the numbers for the loader's metrics.

    Attributes:
        batch: this rank's rows.
        rows: number of rows; each row is one window.
        padded_bytes, valid_bytes: bytes with and without padding. A device counts valid bytes later.
        dataset_counts: int64 [datasets], the number of rows from each dataset of a mixture; None without a mixture.
        deliver: deliver(batch) returns the batch for the consumer; `BatchIterator` calls it in the consumer's thread.
            None: the consumer gets `batch` itself.
    """

    batch: Batch
    rows: int
    padded_bytes: int
    valid_bytes: int | DeferredCount
    dataset_counts: Int64Array | None = None
    deliver: Callable[[Batch], Batch] | None = None


class BatchBuilder(Protocol):
    """Builds this rank's rows of the batch of any step.

    Safe to call from several threads.

    Attributes:
        threaded: whether a thread should build batches ahead. Otherwise `build` only starts work of a device, and a
            thread would cost more time than it saves.
    """

    @property
    def threaded(self) -> bool: ...

    def build(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Returns the batches of these steps, in order."""


class BuilderLookup(Protocol):
    """Finds the builder of any step: a loader whose dataset grows has one for each generation.

    Safe to call from several threads.
    """

    @property
    def threaded(self) -> bool:
        """Whether a thread should build batches ahead: see `BatchBuilder`."""

    def at(self, step: int) -> BatchBuilder:
        """Returns the builder of a step's batch."""

    def build(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Returns the batches of ascending steps, in order."""


@dataclass(frozen=True)
class RankRows:
    """The rows of a global batch that one rank builds.

    Rank r of w has the rows [r * B // w, (r + 1) * B // w). With `decentralized` selection, B is the number of rows of
    the rank's node.

    Attributes:
        layout: the rows of global batches.
        rank, world_size: the rank, and the number of ranks.
    """

    layout: PassLayout
    rank: int
    world_size: int

    @property
    def whole(self) -> bool:
        """Whether the rank has all rows of every batch, so that no batch needs slicing."""
        return self.world_size == 1 and self.layout.windows is None

    @property
    def batch_size(self) -> int:
        """Slots of a whole global batch."""
        return self.layout.batch_size

    def bounds(self, step: int, windows: int) -> tuple[int, int]:
        """Returns (first, last + 1) of the rank's rows among a step's windows.

        Args:
            step: the batch's step.
            windows: number of windows that were sampled. This is the number of slots of the global batch, or less with
                `decentralized` selection.
        """
        total = min(self.layout.rows(step), windows)
        return self.rank * total // self.world_size, (self.rank + 1) * total // self.world_size
