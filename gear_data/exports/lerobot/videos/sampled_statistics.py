"""Statistics of frames for `meta/stats.json`, from a sample."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import PIL
from gear_data.common.images import decode_errors
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

    They are empty for encoded images that are grey with more than 8 bits.

    Args:
        dataset: the dataset or view.
        spec: a camera, or a column of uint8 frames [H, W, 3] or of encoded images.
    """
    found: Any = dataset.statistics.get(spec.name) if spec.video is not None else None
    if found is not None:
        frames = found.sampled_frames
    else:
        frames, counts = _counts(dataset, spec)
        if not frames:
            return {}
        found = frame_statistics(counts, spec.depth)
    values = {name: getattr(found, name) for name in ("min", "max", "mean", "std")}
    values.update(zip(_QUANTILES, found.quantiles, strict=True))
    unit = 255 if spec.depth is None else 1
    return {name: (each / unit).reshape(-1, 1, 1).tolist() for name, each in values.items()} | {"count": [frames]}


def _counts(dataset: Dataset, spec: ColumnSpec) -> tuple[int, npt.NDArray[np.int64]]:
    """Returns the number of frames of a sample, and the counts of their values (`count_values`)."""
    if spec.video is not None:
        return _camera_counts(dataset, spec)
    return _image_counts(dataset, spec.name) if spec.variable_length else _column_counts(dataset, spec.name)


def _camera_counts(dataset: Dataset, camera: ColumnSpec) -> tuple[int, npt.NDArray[np.int64]]:
    """Returns the same as `_counts` of a camera."""
    videos = dataset.store.videos
    segments = videos.segments[camera.name]
    if dataset.view.rows is not None:
        segments = VideoSegments(segments.file[dataset.view.rows], segments.first_frame[dataset.view.rows])
    sample = choose_sample(videos.index, segments, dataset.lengths)
    return len(sample), count_values(videos.reader, sample, depth=camera.depth is not None)


def _column_counts(dataset: Dataset, column: str) -> tuple[int, npt.NDArray[np.int64]]:
    """Returns the same as `_counts` of a column of frames in the shards; the counts are int64 [3, 256]."""
    counts, read = np.zeros((3, 256), np.int64), 0
    for position, steps in _sampled_steps(dataset):
        frames = dataset[position][column][steps]
        read += len(frames)
        for channel in range(3):
            counts[channel] += np.bincount(frames[..., channel].reshape(-1), minlength=256)
    return read, counts


def _image_counts(dataset: Dataset, column: str) -> tuple[int, npt.NDArray[np.int64]]:
    """Returns the same as `_counts` of a column of encoded images; the counts are int64 [channels, 256].

    Images that are damaged, or have other channels than the first one, are left out: LeRobot refuses their steps.
    """
    counts, read, errors = np.zeros((0, 256), np.int64), 0, decode_errors()
    for position, steps in _sampled_steps(dataset):
        images = dataset.values(column, position, position + 1)
        for step in steps.tolist():
            encoded = images[step].as_py()
            try:
                with PIL.Image.open(io.BytesIO(encoded)) as image:
                    channels, pixels = len(image.getbands()), np.asarray(image)
            except errors:
                continue
            if pixels.dtype == np.bool_:
                pixels = pixels.astype(np.uint8) * np.uint8(255)
            if pixels.dtype != np.uint8 or (read and channels != len(counts)):
                continue
            if not read:
                counts = np.zeros((channels, 256), np.int64)
            read += 1
            for channel, values in enumerate(pixels.reshape(-1, channels).T):
                counts[channel] += np.bincount(values, minlength=256)
    return read, counts


def _sampled_steps(dataset: Dataset) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields positions of episodes, and the steps of each that are in the sample."""
    steps = np.unique(np.linspace(0, dataset.num_steps - 1, min(SAMPLE, dataset.num_steps)).astype(np.int64))
    positions = np.searchsorted(dataset.offsets, steps, "right") - 1
    for position in np.unique(positions).tolist():
        yield position, steps[positions == position] - dataset.offsets[position]
