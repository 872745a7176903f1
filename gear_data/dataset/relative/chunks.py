"""Chunks: the elements of a relative column in all windows of a dataset, and exact sums and counts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.dataset.core import DatasetCore
from gear_data.dataset.episode_blocks import block_ranges
from gear_data.dataset.steps.finite import place_of
from gear_data.errors import NonFiniteError, UnsupportedColumnError
from gear_data.kernels import cpu

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

#: Bytes of both columns that are read at once.
_BLOCK_BYTES = 4 << 20


@dataclass
class Sums:
    """Exact sums of groups of elements, which can be added in any order.

    Attributes:
        counts: int64 [groups], the number of steps.
        limbs: int64 [groups, 2, width, limbs], the sums of values and of squares; see `cpu.statistics`.
        low, high: float64 [groups, width], the least and the largest value.
    """

    counts: Int64Array
    limbs: Int64Array
    low: Float64Array
    high: Float64Array

    @staticmethod
    def empty(groups: int, width: int) -> Sums:
        """Returns the sums of nothing."""
        limbs = np.zeros((groups, 2, width, cpu.statistics.LIMBS), np.int64)
        low, high = np.full((groups, width), np.inf), np.full((groups, width), -np.inf)
        return Sums(np.zeros(groups, np.int64), limbs, low, high)

    def add(self, other: Sums) -> None:
        """Adds other sums."""
        self.counts += other.counts
        self.limbs += other.limbs
        np.minimum(self.low, other.low, out=self.low)
        np.maximum(self.high, other.high, out=self.high)


def check_present(dataset: DatasetCore, names: Sequence[str]) -> None:
    """Raises UnsupportedColumnError if a column has no value at some steps: a difference needs both columns."""
    for name in names:
        mask = dataset.schema.mask_of(name)
        if mask is not None and dataset.statistics[mask].min[0] != 1:
            raise UnsupportedColumnError(
                "some steps have no value of the column, and differences need both columns",
                file=str(dataset.path),
                column=name,
                hint="leave out the episodes that lack it: ds.filter(\"source = 'FILE'\") keeps those of a file",
            )


@dataclass(frozen=True)
class Chunks:
    """The chunks of a dataset: the steps of a window at each step of each episode, without padding.

    Attributes:
        dataset: the dataset or view.
        columns: the columns whose elements stand side by side.
        state: the columns that are subtracted, side by side.
        elements: for each element, the element of `state` that is subtracted; -1: none.
        steps: the steps of a chunk relative to its window's first step.
        delta: see `gear_data.Relative`.
        per_step: whether each step of a chunk has statistics of its own.
    """

    dataset: DatasetCore
    columns: tuple[str, ...]
    state: tuple[str, ...]
    elements: tuple[int, ...]
    steps: tuple[int, ...]
    delta: bool
    per_step: bool

    @property
    def groups(self) -> int:
        """The number of groups of steps that have statistics of their own."""
        return len(self.steps) if self.per_step else 1

    def sums(self, first: int, last: int) -> Sums:
        """Returns the sums over the episodes at positions first to last - 1.

        Raises:
            NonFiniteError: a value is NaN or infinite.
        """
        found = Sums.empty(self.groups, len(self.elements))
        for begin, values, state, lengths in self._blocks(first, last):
            self._check_finite(self.columns, values, begin, lengths)
            self._check_finite(self.state, state, begin, lengths)
            cpu.statistics.sum_chunks(
                values, state, lengths, *self._arrays(), found.counts, found.limbs, found.low, found.high
            )
        return found

    def digits(self, first: int, last: int, shift: int, prefixes: npt.NDArray[np.uint64]) -> Int64Array:
        """Returns counts of digits over the episodes: see `gear_data.storage.quantiles.exact`."""
        counts = np.zeros((*prefixes.shape, 1 << cpu.statistics.DIGIT_BITS), np.int64)
        for _, values, state, lengths in self._blocks(first, last):
            cpu.statistics.count_chunk_digits(
                values, state, lengths, *self._arrays(), np.uint64(shift), prefixes, counts
            )
        return counts

    def _arrays(self) -> tuple[Int64Array, Int64Array, bool, Int64Array]:
        groups = np.arange(len(self.steps)) if self.per_step else np.zeros(len(self.steps), np.int64)
        return np.array(self.steps, np.int64), np.array(self.elements, np.int64), self.delta, groups

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, Float64Array, Float64Array, Int64Array]]:
        """Yields the position of the first episode, both columns, and the lengths of whole episodes."""
        schema, lengths = self.dataset.schema, self.dataset.lengths[first:last]
        step_bytes = 8 * sum(schema[name].size for name in (*self.columns, *self.state))
        for begin, end in block_ranges(lengths, step_bytes, _BLOCK_BYTES):
            values, state = (self._read(names, first + begin, first + end) for names in (self.columns, self.state))
            yield first + begin, values, state, lengths[begin:end]

    def _read(self, names: Sequence[str], first: int, last: int) -> Float64Array:
        parts = [self.dataset.steps(name, first, last) for name in names]
        return np.concatenate([part.reshape(len(part), -1).astype(np.float64) for part in parts], axis=1)

    def _check_finite(self, names: Sequence[str], values: Float64Array, first: int, lengths: Int64Array) -> None:
        """Raises NonFiniteError for a value of the episodes from position `first` on that is not finite."""
        if np.isfinite(values).all():
            return
        row, element = np.argwhere(~np.isfinite(values))[0].tolist()
        episode, step = place_of(self.dataset, first, lengths, row)
        raise NonFiniteError(
            f"element {element} is {values[row, element]} at step {step} of episode {episode}, and statistics of "
            "differences need all values",
            file=str(self.dataset.path),
            column=", ".join(names),
            hint=f"leave the episode out with ds.filter('episode_id != {episode}'), or give normalize= a mapping of "
            "the relative column to (mean, std)",
        )
