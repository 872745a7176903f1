"""Statistics of frames for `meta/stats.json`, from a sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset

#: Frames of the sample, evenly distributed over all steps.
SAMPLE = 256
#: Frames that are decoded at once.
_AT_ONCE = 16
#: LeRobot's names of the quantiles.
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def frame_statistics(dataset: Dataset, column: str) -> dict[str, Any]:
    """Returns LeRobot's statistics of a column of frames, for each channel in [0, 1].

    Args:
        dataset: the dataset or view.
        column: a camera, or a column of uint8 frames [H, W, 3].
    """
    counts = np.zeros((3, 256), np.int64)
    frames = 0
    for block in _sample(dataset, column):
        frames += len(block)
        for channel in range(3):
            counts[channel] += np.bincount(block[..., channel].reshape(-1), minlength=256)
    return {name: _per_channel(values) for name, values in _moments(counts).items()} | {"count": [frames]}


def _sample(dataset: Dataset, column: str) -> Iterable[npt.NDArray[np.uint8]]:
    steps = np.unique(np.linspace(0, dataset.num_steps - 1, min(SAMPLE, dataset.num_steps)).astype(np.int64))
    positions = np.searchsorted(dataset.offsets, steps, "right") - 1
    for position in np.unique(positions).tolist():
        frames = dataset[position][column]
        inside = steps[positions == position] - dataset.offsets[position]
        for first in range(0, len(inside), _AT_ONCE):
            yield frames[inside[first : first + _AT_ONCE]]


def _moments(counts: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.float64]]:
    """Returns statistics [3] of values that occur `counts` times, int64 [3, 256]."""
    values = np.arange(256) / 255
    total = counts.sum(axis=1)
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    present = counts > 0
    found = {
        "min": values[present.argmax(axis=1)],
        "max": values[255 - present[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": std,
    }
    reached = counts.cumsum(axis=1)
    for name, probability in _QUANTILES.items():
        found[name] = values[(reached >= np.ceil(probability * total)[:, None]).argmax(axis=1)]
    return found


def _per_channel(values: npt.NDArray[np.float64]) -> list[Any]:
    return values.reshape(3, 1, 1).tolist()
