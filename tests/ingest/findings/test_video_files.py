"""Findings about video files, from the index of a file and what the source declares."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.findings.video_files import DeclaredVideo, video_findings
from gear_data.video.file_index import KEY, ColorProperties, Packets, VideoFile


def video(ticks: Any, *, group: int = 10, base: Fraction = Fraction(1, 30), codec: str = "av1") -> VideoFile:
    """A file whose frames have these times, with a key frame every `group` packets."""
    scale = 512 if base == Fraction(1, 30) else 1  # MP4 files count in 1/15360 s
    pts, base = np.asarray(ticks, np.int64) * scale, base / scale
    count = len(pts)
    flags = np.where(np.arange(count) % group == 0, KEY, 0).astype(np.uint8)
    packets = Packets(pts, np.arange(count) * 10, np.full(count, 10, np.int32), flags, np.zeros(count, np.uint64))
    colors = ColorProperties()
    return VideoFile("videos/a.mp4", 10 * count, "", codec, b"", "yuv420p", 48, 64, colors, base, packets)


def codes(file: VideoFile, **declared: Any) -> list[str]:
    return [finding.code for finding in video_findings(file, DeclaredVideo("cam", "a.mp4", **declared))]


def test_metadata_that_is_right_has_no_findings() -> None:
    assert codes(video(np.arange(30)), height=48, width=64, fps=30, codec="av1", frames=30) == []
    assert codes(video(np.arange(30))) == []
    assert codes(video(np.arange(30), codec="h264"), codec="AVC") == []


@pytest.mark.parametrize(
    ("declared", "code", "text"),
    [
        ({"height": 64, "width": 48}, "video-size-differs", "48 x 64"),
        ({"codec": "h264"}, "video-codec-differs", "h264"),
        ({"fps": 29.97}, "video-fps-differs", "29.97"),
        ({"frames": 31}, "video-frames-differ", "31"),
        ({"depth": True}, "depth-as-rgb", "depth maps"),
    ],
)
def test_metadata_that_lies(declared: dict[str, Any], code: str, text: str) -> None:
    (found,) = video_findings(video(np.arange(30)), DeclaredVideo("cam", "source/a.mp4", **declared))
    assert (found.code, found.column, found.file, found.count) == (code, "cam", "source/a.mp4", 1)
    assert text in found.message


def test_groups_above_sixty_frames() -> None:
    assert codes(video(np.arange(200), group=60)) == []
    assert codes(video(np.arange(200), group=61)) == ["long-gop"]


def test_rounded_times_are_no_variable_rate() -> None:
    """Matroska counts milliseconds: frames at 30 per second are 33 or 34 ms apart."""
    pts = np.round(np.arange(300) * 1000 / 30)
    assert codes(video(pts, base=Fraction(1, 1000)), fps=30) == []
    assert codes(video(pts, base=Fraction(1, 1000)), fps=29.97) == ["video-fps-differs"]


def test_a_gap_is_a_variable_rate() -> None:
    pts = np.arange(40) + (np.arange(40) >= 17)
    found = video_findings(video(pts), DeclaredVideo("cam", "a.mp4", fps=30))
    assert [finding.code for finding in found] == ["variable-frame-rate"]
    assert found[0].message.startswith("frames 16 and 17 are 0.0666667 s apart")


def test_files_are_counted_together() -> None:
    log = FindingLog()
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        for finding in video_findings(video(np.arange(30)), DeclaredVideo("cam", name, codec="h264")):
            log.add(finding)
    (found,) = log
    assert (found.count, found.file) == (3, "a.mp4")
