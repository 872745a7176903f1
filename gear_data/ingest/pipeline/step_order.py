"""Columns that number the steps of an episode, compared with the order in which the steps stand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.storage.block import EpisodeBlock

#: Stands for a step without a number: it follows on none.
_NONE = np.iinfo(np.int64).min


def step_numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    """int64 [n]: an integer column of step numbers, whatever it has at steps that have none."""
    values: npt.NDArray[np.int64] = array.cast(pa.int64(), safe=False).fill_null(_NONE).to_numpy(zero_copy_only=False)
    return values


def not_increasing(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """bool [n - 1]: whether each number after the first is not larger than the one before."""
    return numbers[1:] <= numbers[:-1]


def check_step_order(
    block: EpisodeBlock,
    numbers: npt.NDArray[np.int64],
    column: str,
    findings: FindingLog,
    *,
    from_zero: bool,
    rows_are_steps: bool,
) -> None:
    """Notes where numbers do not rise by one within an episode, or, `from_zero`, do not begin with 0.

    Args:
        numbers: int64 [steps], of all the block's episodes.
    """
    starts = block.offsets[:-1]
    falling, following = np.zeros(len(numbers), np.bool_), np.ones(len(numbers), np.bool_)
    falling[1:] = not_increasing(numbers)
    following[1:] = numbers[1:] == numbers[:-1] + 1
    falling[starts] = False
    following[starts] = numbers[starts] == 0 if from_zero else True
    kinds = {
        "steps-not-monotonic": (falling, "the number of a step is not larger than the one before it"),
        "steps-gapped": (~following & ~falling, "numbers of steps are left out"),
    }
    for code, (found, message) in kinds.items():
        steps = np.flatnonzero(found)
        if len(steps):
            episode = int(np.searchsorted(block.offsets, steps[0], side="right")) - 1
            step = int(steps[0] - block.offsets[episode])
            # Not the step's own row: it may be in another file than the episode's first.
            message = f"{message}, first at step {step} of its episode; the source's order of rows is kept"
            row = int(block.rows[episode])
            findings.add(Finding(code, message, len(steps), block.sources[episode], row, column))
