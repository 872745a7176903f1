"""StepSample: the steps that a report reads, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.reports.numbers import drawable
from gear_data.schema import ColumnSpec

#: Steps that a report reads. Larger datasets are sampled by whole episodes.
SAMPLE_STEPS = 1_000_000
#: Values of one column that are in memory at once. Wider columns give every n-th step.
_COLUMN_VALUES = 20_000_000

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepSample:
    """The episodes whose steps are read.

    Attributes:
        dataset: view of these episodes.
        positions: int64 [k], ascending: their positions in the dataset of the report.
        complete: whether these are all episodes.
    """

    dataset: Dataset
    positions: Int64Array
    complete: bool

    @property
    def starts(self) -> Int64Array:
        """int64 [k]: first step of each episode in the sample."""
        return self.dataset.offsets[:-1]

    def steps(self, name: str, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Returns the steps of the episodes first to last - 1 as `Dataset.steps`, with the values of `drawable`."""
        return drawable(self.dataset.steps(name, first, len(self.dataset) if last is None else last))

    def column(self, spec: ColumnSpec, budget: int = _COLUMN_VALUES) -> tuple[npt.NDArray[Any], int]:
        """Returns every n-th step of a column, [steps, elements], and n.

        Steps that the column's mask excludes are left out. n is 1 unless the column has more values than `budget`.
        """
        stride = max(1, -(-self.dataset.num_steps * max(1, spec.size) // budget))
        mask = self.dataset.schema.mask_of(spec.name)
        parts = []
        for first, last in block_ranges(self.dataset.lengths, spec.row_bytes, BLOCK_BYTES):
            skipped = -int(self.dataset.offsets[first]) % stride
            values = self.steps(spec.name, first, last)[skipped::stride]
            if mask is not None:
                values = values[self.dataset.steps(mask, first, last)[skipped::stride].astype(np.bool_)]
            parts.append(values.reshape(len(values), spec.size))
        return np.concatenate(parts), stride

    def blocks(self, spec: ColumnSpec) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
        """Yields (first, last, values [steps, elements]): the column of the episodes first to last - 1."""
        for first, last in block_ranges(self.dataset.lengths, 8 * spec.size, BLOCK_BYTES):
            values = self.steps(spec.name, first, last)
            yield first, last, values.reshape(len(values), spec.size)


def draw_sample(dataset: Dataset, steps: int = SAMPLE_STEPS) -> StepSample:
    """Returns all episodes, or a random sample of about `steps` steps. Equal datasets give equal samples."""
    positions = np.arange(len(dataset))
    if dataset.num_steps <= steps:
        return StepSample(dataset, positions, True)
    drawn = np.random.default_rng(0).permutation(positions)
    count = max(1, int(np.searchsorted(np.cumsum(dataset.lengths[drawn]), steps, side="right")))
    chosen = np.sort(drawn[:count])
    return StepSample(dataset.select(chosen), chosen, False)


def spread(count: int, most: int) -> Int64Array:
    """Returns up to `most` of the positions 0 to count - 1, evenly spaced, with the first and the last."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
