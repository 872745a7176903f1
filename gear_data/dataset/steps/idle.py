"""The steps outside of long idle runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import pluralize, progress_bar
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.step_rate import TIMESTAMP, measured_rate, stated_rate
from gear_data.dataset.steps.runs import flags_in_runs
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import StepRule
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of

#: Decimals of a number of steps: 7 / 15 s at 15 Hz are 7 steps, not 8.
_DECIMALS = 6


@dataclass(frozen=True)
class Moving(StepRule):
    """The steps that are in no long idle run. A `StepRule`.

    Attributes:
        column, threshold, seconds, fps: see `Dataset.drop_idle`.
        steps: the length of the shortest run that is left out.
    """

    column: str
    threshold: float
    seconds: float
    fps: float | None
    steps: int

    def __str__(self) -> str:
        return f"drop_idle of {self.column}, threshold {self.threshold:g}, {pluralize(self.steps, 'step')}"

    def flags(self, store: DatasetStore, ids: Int64Array) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Yields runs of steps: see `StepRule`."""
        lengths, first_steps = store.lengths[ids], store.offsets[ids]
        step_bytes, mask = store.schema[self.column].row_bytes, store.schema.mask_of(self.column)
        with progress_bar(int(lengths.sum()), "find idle steps", "step", None) as bar:
            for first, last in block_ranges(lengths, step_bytes, BLOCK_BYTES):
                values = store.steps(self.column, ids[first:last])
                idle = self._idle(values, offsets_of(lengths[first:last])[:-1])
                if mask is not None:  # a value that is not there does not say that the robot rests
                    idle &= store.steps(mask, ids[first:last]).astype(np.bool_)
                moving = ~self._in_long_runs(idle)
                bar.update(len(moving))
                yield from flags_in_runs(first_steps[first:last], lengths[first:last], moving)

    def _idle(self, values: npt.NDArray[np.generic], begins: Int64Array) -> npt.NDArray[np.bool_]:
        """Returns bool [steps]: the step differs by less than the threshold from the one before in its episode."""
        flat = values.reshape(len(values), -1).astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            near = np.abs(np.diff(flat, axis=0, prepend=np.nan)) < self.threshold
        idle: npt.NDArray[np.bool_] = np.all(near, axis=1)
        idle[begins] = False
        return idle

    def _in_long_runs(self, idle: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        edges = np.diff(idle.view(np.int8), prepend=np.int8(0), append=np.int8(0))
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        long = ends - begins >= self.steps
        marks = np.zeros(len(idle) + 1, np.int8)
        marks[begins[long]], marks[ends[long]] = 1, -1
        return np.cumsum(marks[:-1], dtype=np.int8).view(np.bool_)


def moving(dataset: DatasetCore, column: str, threshold: float, seconds: float, fps: float | None) -> Moving:
    """Returns the steps outside of idle runs. Arguments and errors are those of `Dataset.drop_idle`."""
    spec = dataset.schema.columns[dataset.schema.index(column)]
    if spec.variable_length:
        raise UnsupportedColumnError(
            f"holds {spec.dtype}, and changes of numbers are needed", column=column, hint="name a column of numbers"
        )
    for name, value in (("threshold", threshold), ("seconds", seconds), ("fps", 1 if fps is None else fps)):
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise InvalidArgumentError(f"{name} must be a number above 0, not {value!r}")
    rate = stated_rate(dataset) if fps is None else float(fps)
    if rate is None:
        rate = measured_rate(dataset, TIMESTAMP, "give the steps per second, such as fps=15")
    steps = max(1, math.ceil(round(seconds * rate, _DECIMALS)))
    return Moving(column, float(threshold), float(seconds), None if fps is None else float(fps), steps)
