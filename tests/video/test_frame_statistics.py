"""The sample of a camera's frames, and its statistics."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gear_data.video.file_index import DISCARD, KEY, ColorProperties, Packets, VideoFile
from gear_data.video.frame_statistics import PROBABILITIES, choose_sample, frame_statistics
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.segments import VideoSegments


def index(frames: int, group: int, *, hidden: int = 0) -> VideoIndex:
    """One file. `hidden` packets at its beginning are not shown."""
    numbers = np.arange(frames)
    flags = (np.where(numbers % group == 0, KEY, 0) | np.where(numbers < hidden, DISCARD, 0)).astype(np.uint8)
    sizes = np.full(frames, 5, np.int32)
    packets = Packets(numbers, numbers * 5, sizes, flags, np.zeros(frames, np.uint64))
    file = VideoFile("a", 5 * frames, "x", "av1", b"", "yuv420p", 4, 4, ColorProperties(), Fraction(1, 30), packets)
    return VideoIndex(*index_tables([file]), "index")


def sample(of: VideoIndex, lengths: list[int], first: list[int]) -> list[int]:
    segments = VideoSegments(np.zeros(len(first), np.int64), np.array(first))
    chosen = choose_sample(of, segments, np.array(lengths))
    assert (chosen.file == 0).all()
    return [int(each) for each in chosen.frame]


@pytest.mark.parametrize(
    ("total", "count"),
    # LeRobot's own `estimate_num_samples`.
    [(50, 50), (100, 100), (665, 130), (10_000, 1000), (1_000_000, 10_000)],
)
def test_the_sample_is_as_large_as_lerobots(total: int, count: int) -> None:
    frames = sample(index(total, 1), [total], [0])
    assert len(frames) == count
    assert (frames[0], frames[-1]) == (0, total - 1)
    assert max(np.diff(frames)) <= total / (count - 1) + 1


def test_key_frames_are_preferred() -> None:
    frames = sample(index(10_000, 10), [4000, 6000], [0, 4000])
    assert len(frames) > 600
    assert all(frame % 10 == 0 for frame in frames)


def test_few_key_frames_are_not_enough() -> None:
    frames = sample(index(1000, 500), [1000], [0])
    assert len(frames) == 100
    assert frames != sorted({frame // 500 * 500 for frame in frames})


def test_no_frame_is_outside_the_episodes() -> None:
    """The key frame of an episode's first frames may belong to the episode before, which is not in the dataset."""
    frames = sample(index(4000, 10), [995, 900], [1005, 3000])
    assert all(1005 <= frame < 2000 or 3000 <= frame < 3900 for frame in frames)
    assert len(set(frames)) == len(frames)


def test_hidden_key_frames_are_not_read() -> None:
    frames = sample(index(400, 40, hidden=10), [390], [0])
    assert len(frames) == 100
    assert max(frames) <= 389


def test_statistics_are_those_of_the_values() -> None:
    rng = np.random.default_rng(0)
    values = np.stack([rng.integers(low, high, 1001) for low, high in ((0, 256), (10, 12), (200, 201))])
    counts = np.stack([np.bincount(each, minlength=256) for each in values])
    found = frame_statistics(counts)
    np.testing.assert_allclose(found.mean, values.mean(axis=1))
    np.testing.assert_allclose(found.std, values.std(axis=1), atol=1e-9)
    np.testing.assert_array_equal(found.min, values.min(axis=1))
    np.testing.assert_array_equal(found.max, values.max(axis=1))
    expected = np.quantile(values, PROBABILITIES, axis=1, method="inverted_cdf")
    np.testing.assert_array_equal(found.quantiles, expected)
