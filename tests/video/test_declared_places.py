"""Episodes of one video file: counted where they fill the file, timed where the times fit."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from gear_data.video.declared_places import DeclaredPlaces, frame_ranges
from gear_data.video.file_index import KEY, ColorProperties, Packets, VideoFile

LENGTHS = (601, 60, 300, 40)
TOTAL = sum(LENGTHS)
FIRST = (0, 601, 661, 961)


def video(frames: int, rate: Fraction) -> VideoFile:
    """A file of a constant rate. Its times are exact."""
    pts = np.arange(frames) * 1001
    nothing = np.zeros(frames, np.int64)
    packets = Packets(pts, nothing, nothing.astype(np.int32), np.full(frames, KEY, np.uint8), nothing.astype(np.uint64))
    return VideoFile("a.mp4", 1, "", "h264", b"", "yuv420p", 48, 64, ColorProperties(), 1 / rate / 1001, packets)


def places(
    starts: npt.ArrayLike, stops: npt.ArrayLike, frames: npt.ArrayLike = LENGTHS, fps: float = 30
) -> DeclaredPlaces:
    return DeclaredPlaces(np.array(starts, float), np.array(stops, float), np.array(frames, np.int64), fps)


def timed(rate: float, keep: slice | list[int] = slice(None)) -> DeclaredPlaces:
    """The places of some episodes, with times of one rate."""
    starts = np.array(FIRST)[keep] / rate
    lengths = np.array(LENGTHS)[keep]
    return places(starts, starts + lengths / rate, lengths)


RATES = [Fraction(30), Fraction(30000, 1001), Fraction(25), Fraction(31)]


@pytest.mark.parametrize("clock", ["metadata", "file"])
@pytest.mark.parametrize("rate", RATES, ids=str)
def test_episodes_that_fill_the_file_are_counted(rate: Fraction, clock: str) -> None:
    found = frame_ranges(video(TOTAL, rate), timed(30 if clock == "metadata" else float(rate)))
    assert found.tolist() == [list(each) for each in pairwise([*FIRST, TOTAL])]


def test_merged_files_are_counted() -> None:
    """The second half begins at the real duration of the first half, and goes on with the metadata's rate."""
    starts = [0, 601 / 30, 661 / 25, 661 / 25 + 300 / 30]
    found = frame_ranges(video(TOTAL, Fraction(25)), places(starts, np.array(starts) + np.array(LENGTHS) / 30))
    assert found[:, 0].tolist() == list(FIRST)


@pytest.mark.parametrize("rate", RATES, ids=str)
@pytest.mark.parametrize("extra", [0, 1])
def test_times_of_the_file_decide_in_a_file_with_other_frames(rate: Fraction, extra: int) -> None:
    """The second episode was deleted, and its frames were not. Files may have a frame more than the episode."""
    kept = timed(float(rate), [0, 2, 3])
    kept = places(kept.start, kept.stop + extra / rate, kept.frames)
    assert frame_ranges(video(TOTAL, rate), kept).tolist() == [[0, 661], [661, 961], [961, TOTAL]]


def test_times_of_another_rate_are_unclear() -> None:
    """Frame 661 has the time of frame 660.34 in a file of 29.97 frames per second: nobody says which one is meant."""
    found = frame_ranges(video(TOTAL, RATES[1]), timed(30, [0, 2, 3]))
    assert found.tolist() == [[0, TOTAL], [-1, TOTAL], [-1, TOTAL]]
    unknown = timed(30, [0, 2, 3])
    unknown = places(unknown.start, [np.nan] * 3, unknown.frames)
    assert frame_ranges(video(TOTAL, RATES[1]), unknown)[:, 0].tolist() == [0, -1, -1]


def test_an_episode_ends_where_the_next_one_begins() -> None:
    """The metadata puts the second episode ten frames too early."""
    starts = np.array([0, 591, 661, 961]) / 30
    found = frame_ranges(video(TOTAL + 5, Fraction(30)), places(starts, starts + np.array(LENGTHS) / 30))
    assert found.tolist() == [[0, 591], [591, 661], [661, 961], [961, TOTAL + 5]]
