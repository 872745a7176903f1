from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gear_data.video.decoding.jobs import GroupJob, packet_ranges, plan_jobs
from gear_data.video.file_index import KEY, ColorProperties, Packets, VideoFile
from gear_data.video.index_tables import VideoIndex, index_tables


@pytest.fixture
def video() -> VideoFile:
    """Returns the index of three groups of four packets.

    Frames 4 and 5 are leading: shown before the key frame of the second group.
    """
    pts = np.array([0, 2, 1, 3, 6, 4, 5, 7, 8, 11, 9, 10], np.int64) * 512
    packets = Packets(
        pts=pts,
        position=np.arange(12, dtype=np.int64) * 100,
        size=np.full(12, 100, np.int32),
        flags=np.where(np.arange(12) % 4 == 0, KEY, 0).astype(np.uint8),
        digest=np.arange(12, dtype=np.uint64),
    )
    return VideoFile(
        "a.mp4", 1200, "xxh3-128:0", "h264", b"", "yuv420p", 48, 64, ColorProperties(), Fraction(1, 15360), packets
    )


def index_of(video: VideoFile) -> VideoIndex:
    return VideoIndex(*index_tables([video]), "dataset")


def test_frames_of_a_group_are_one_job_up_to_the_last_needed_packet(video: VideoFile) -> None:
    # Frames 9 and 10 are packets 10 and 11; frame 1 is packet 2.
    jobs = list(plan_jobs(index_of(video), 0, [10, 1, 9]))
    assert jobs == [
        GroupJob(0, first=0, last=3, end=4, frames={512: 1}, trusted=0),
        GroupJob(0, first=8, last=12, end=12, frames={5120: 10, 4608: 9}, trusted=4096),
    ]


def test_leading_frames_need_the_group_before(video: VideoFile) -> None:
    index = index_of(video)
    assert list(plan_jobs(index, 0, [4])) == [GroupJob(0, first=0, last=6, end=8, frames={2048: 4}, trusted=0)]
    assert list(plan_jobs(index, 0, [6])) == [GroupJob(0, first=4, last=5, end=8, frames={3072: 6}, trusted=3072)]
    # Both groups are wanted: they are decoded in one go, and the first only once.
    assert list(plan_jobs(index, 0, [2, 4, 6])) == [
        GroupJob(0, first=0, last=6, end=8, frames={1024: 2, 2048: 4, 3072: 6}, trusted=0)
    ]


def test_no_frames_are_no_jobs(video: VideoFile) -> None:
    assert list(plan_jobs(index_of(video), 0, [])) == []


def test_packets_that_lie_together_share_a_range(video: VideoFile) -> None:
    job = GroupJob(0, first=4, last=8, end=8, frames={}, trusted=0)
    assert packet_ranges(index_of(video), job) == [(0, 400, 800)]
    # Sound of 150 bytes lies between packets 4 and 5, of 10,000 bytes between 5 and 6, and packet 7 lies before.
    position = video.packets.position.copy()
    position[4:8] = 400, 650, 10_750, 100
    moved = replace(video, packets=replace(video.packets, position=position))
    assert packet_ranges(index_of(moved), job) == [(0, 400, 750), (0, 10_750, 10_850), (0, 100, 200)]
