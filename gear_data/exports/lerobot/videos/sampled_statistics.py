"""Statistics of frames for `meta/stats.json`, from a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.schema import ColumnSpec
from gear_data.video.frame_statistics import choose_sample, count_values, frame_statistics
from gear_data.video.segments import VideoSegments

#: Frames of the sample of a column, evenly distributed over all steps.
SAMPLE = 256
#: LeRobot's names of the quantiles of `frame_statistics`.
_QUANTILES = ("q01", "q10", "q50", "q90", "q99")


def sampled_statistics(dataset: Dataset, spec: ColumnSpec) -> dict[str, Any]:
    """Returns LeRobot's statistics of frames, for each channel in [0, 1], or of depth in its unit.

    Args:
        dataset: the dataset or view.
        spec: a camera, or a column of uint8 frames [H, W, 3].
    """
    found: Any = dataset.statistics.get(spec.name) if spec.video is not None else None
    if found is not None:
        frames = found.sampled_frames
    else:
        frames, counts = _camera_counts(dataset, spec) if spec.video else _column_counts(dataset, spec.name)
        found = frame_statistics(counts, spec.depth)
    values = {name: getattr(found, name) for name in ("min", "max", "mean", "std")}
    values.update(zip(_QUANTILES, found.quantiles, strict=True))
    unit = 255 if spec.depth is None else 1
    return {name: (each / unit).reshape(-1, 1, 1).tolist() for name, each in values.items()} | {"count": [frames]}


def _camera_counts(dataset: Dataset, camera: ColumnSpec) -> tuple[int, npt.NDArray[np.int64]]:
    """Returns the number of frames of a sample, and the counts of their values (`count_values`)."""
    videos = dataset.store.videos
    segments = videos.segments[camera.name]
    if dataset.view.rows is not None:
        segments = VideoSegments(segments.file[dataset.view.rows], segments.first_frame[dataset.view.rows])
    sample = choose_sample(videos.index, segments, dataset.lengths)
    return len(sample), count_values(videos.reader, sample, depth=camera.depth is not None)


def _column_counts(dataset: Dataset, column: str) -> tuple[int, npt.NDArray[np.int64]]:
    """Returns the same as `_camera_counts` of a column in the shards; the counts are int64 [3, 256]."""
    steps = np.unique(np.linspace(0, dataset.num_steps - 1, min(SAMPLE, dataset.num_steps)).astype(np.int64))
    counts = np.zeros((3, 256), np.int64)
    positions = np.searchsorted(dataset.offsets, steps, "right") - 1
    for position in np.unique(positions).tolist():
        frames = dataset[position][column][steps[positions == position] - dataset.offsets[position]]
        for channel in range(3):
            counts[channel] += np.bincount(frames[..., channel].reshape(-1), minlength=256)
    return len(steps), counts
