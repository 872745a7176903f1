"""Compares step numbers with the order of the steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.storage.episode_block import EpisodeBlock

#: Replaces a missing step number. No number precedes it.
_NONE = np.iinfo(np.int64).min


def step_numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    """Returns an integer column of step numbers as int64 [n]. Nulls become `_NONE`."""
    values: npt.NDArray[np.int64] = array.cast(pa.int64(), safe=False).fill_null(_NONE).to_numpy(zero_copy_only=False)
    return values


def not_increasing(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns which numbers are not larger than the number before, bool [n - 1]."""
    return numbers[1:] <= numbers[:-1]


def check_step_order(
    block: EpisodeBlock,
    numbers: npt.NDArray[np.int64],
    column: str,
    findings: FindingLog,
    *,
    from_zero: bool,
) -> None:
    """Adds findings for step numbers that do not rise by one, or do not begin with 0.

    Args:
        block: the episodes.
        numbers: the step numbers of all episodes of the block, int64 [steps].
        column: the column of the step numbers, for messages.
        findings: the log to add to.
        from_zero: whether the numbers of each episode must begin with 0.
    """
    starts = block.offsets[:-1]
    falling, consecutive = np.zeros(len(numbers), np.bool_), np.ones(len(numbers), np.bool_)
    falling[1:] = not_increasing(numbers)
    consecutive[1:] = numbers[1:] == numbers[:-1] + 1
    falling[starts] = False
    consecutive[starts] = numbers[starts] == 0 if from_zero else True
    kinds = {
        "steps-not-monotonic": (falling, "a step number is not larger than the number before it"),
        "steps-gapped": (~consecutive & ~falling, "step numbers are missing"),
    }
    for code, (found, message) in kinds.items():
        steps = np.flatnonzero(found)
        if len(steps):
            episode, step = block.locate(steps[0])
            # The row of the episode: the step itself may be in another file.
            message = f"{message}, first at step {step} of its episode; the source's order of rows is kept"
            findings.add(Finding(code, message, len(steps), *place_of(block, episode), column))
