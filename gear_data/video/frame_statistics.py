"""Statistics of a camera's frames from a sample, for each channel.

The sample has as many frames as LeRobot's, and frames as small: `lerobot/datasets/compute_stats.py`. It prefers key
frames, because one packet decodes to a key frame. It is a function of the index only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.schema import DepthFormat
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.targets import RgbFrames
from gear_data.video.depth import NUMBERS, DepthFrames, depth_values
from gear_data.video.index_tables import VideoIndex
from gear_data.video.segments import VideoSegments

Int64Array = npt.NDArray[np.int64]

#: The smallest and the largest sample, and the power of the number of frames between them.
_SMALLEST, _LARGEST, _POWER = 100, 10_000, 0.75
#: Frames with a side of `_LARGE_SIDE` pixels or more are thinned out until the longer side has about `_SIDE` pixels.
_LARGE_SIDE, _SIDE = 300, 150
#: Bytes of frames that are decoded at once.
_BYTES_AT_ONCE = 32 << 20
#: The probabilities of the quantiles.
PROBABILITIES = (0.01, 0.1, 0.5, 0.9, 0.99)


@dataclass(frozen=True, eq=False)
class FrameSample:
    """Frames of a camera: file and number in the file, int64 [n]."""

    file: Int64Array
    frame: Int64Array

    def __len__(self) -> int:
        return len(self.file)


def choose_sample(index: VideoIndex, segments: VideoSegments, lengths: Int64Array) -> FrameSample:
    """Returns evenly distributed frames of a camera, each once.

    They are key frames, unless the camera has fewer key frames than a small sample needs.

    Args:
        index: the files.
        segments: the frames of all episodes.
        lengths: int64 [episodes], frames of each episode.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    count = max(min(_SMALLEST, total), min(int(total**_POWER), _LARGEST))
    keys = _frames(index, segments, lengths, ends, count, snap=True)
    if len(keys) >= min(_SMALLEST, total):
        return keys
    return _frames(index, segments, lengths, ends, min(_SMALLEST, total), snap=False)


def _frames(
    index: VideoIndex, segments: VideoSegments, lengths: Int64Array, ends: Int64Array, count: int, *, snap: bool
) -> FrameSample:
    """Returns the frames of `count` evenly distributed steps.

    With `snap`: the key frames of their groups.
    """
    steps = np.unique(np.linspace(0, ends[-1] - 1, count).astype(np.int64)) if count else np.zeros(0, np.int64)
    episodes = np.searchsorted(ends, steps, "right")
    first = segments.first_frame[episodes]
    file, frame = segments.file[episodes], first + steps - (ends - lengths)[episodes]
    if snap:
        index.load(file)
        for number in np.unique(file).tolist():
            rows = file == number
            frame[rows] = np.maximum(_key_frames(index, number)[frame[rows]], first[rows])
    places = np.unique(np.stack([file, frame], axis=1), axis=0)
    return FrameSample(places[:, 0].copy(), places[:, 1].copy())


def _key_frames(index: VideoIndex, number: int) -> Int64Array:
    """Returns int64 [frames]: the key frame of the group of each frame."""
    groups, video = index.groups(number), index.file(number)
    rank = np.empty(len(video.packets), np.int64)
    rank[video.frames] = np.arange(video.num_frames)
    # The first packet of a group is its key frame. An edit list may hide it: then any frame of the group is taken.
    key = groups.starts[:-1][groups.group]
    shown = np.isin(key, video.frames)
    return np.where(shown, rank[np.where(shown, key, video.frames)], np.arange(video.num_frames))


def count_values(reader: FrameReader, sample: FrameSample, *, depth: bool = False) -> Int64Array:
    """Decodes a sample, and counts the values of each channel: int64 [3, 256], or of depth the numbers, [1, 4096].

    Raises the errors of `FrameReader.read`.
    """
    channels, values = (1, np.arange(NUMBERS, dtype=np.uint16)) if depth else (3, np.arange(256, dtype=np.uint8))
    counts = np.zeros((channels, len(values)), np.int64)
    if not len(sample):
        return counts
    video = reader.index.file(int(sample.file[0]))
    height, width = reader.options.size or (video.height, video.width)
    at_once = max(1, _BYTES_AT_ONCE // (height * width * channels * values.itemsize))
    stride = max(1, max(height, width) // _SIDE) if max(height, width) >= _LARGE_SIDE else 1
    for start in range(0, len(sample), at_once):
        rows = slice(start, start + at_once)
        frames = np.empty((len(sample.file[rows]), height, width, channels), values.dtype)
        target = DepthFrames(frames, height, width, values) if depth else RgbFrames(frames)
        reader.read_into(target, sample.file[rows], sample.frame[rows])
        thinned = frames[:, ::stride, ::stride]
        for channel in range(channels):
            counts[channel] += np.bincount(thinned[..., channel].reshape(-1), minlength=len(values))
    return counts


@dataclass(frozen=True, eq=False)
class FrameStatistics:
    """Statistics of the values 0 to 255, or of depth, for each channel.

    Arrays are float64 [channels]; `quantiles` is [probabilities, channels].
    """

    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    min: npt.NDArray[np.float64]
    max: npt.NDArray[np.float64]
    quantiles: npt.NDArray[np.float64]


def frame_statistics(counts: Int64Array, depth: DepthFormat | None = None) -> FrameStatistics:
    """Returns the statistics of values.

    Args:
        counts: the result of `count_values`.
        depth: the meaning of numbers of depth; None: the values are 0 to 255.
    """
    values = np.arange(256, dtype=np.float64) if depth is None else depth_values(depth).astype(np.float64)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    present = counts > 0
    reached = counts.cumsum(axis=1)
    # The value at which a share of all values is reached.
    needed = np.ceil(np.array(PROBABILITIES)[:, None] * total)
    return FrameStatistics(
        mean=mean,
        std=np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0)),
        min=values[present.argmax(axis=1)],
        max=values[len(values) - 1 - present[:, ::-1].argmax(axis=1)],
        quantiles=values[(reached >= needed[..., None]).argmax(axis=2)],
    )
