"""Checks of video files against what a source declares.

The checks read the index of a file, and decode nothing. docs/reference/findings.md lists the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gear_data.ingest.findings.log import Finding
from gear_data.video.declared_places import DeclaredPlaces
from gear_data.video.file_index import VideoFile
from gear_data.video.frame_groups import frame_groups

#: A GOP of more frames makes reading one frame slow: up to all frames of the GOP are decoded for it.
LONG_GOP = 60
#: Tolerance in seconds for the time between two frames: LeRobot's own `tolerance_s`.
_TOLERANCE = 1e-4
#: Rates differ if one is larger than the other by this share. 29.97 and 30 frames per second differ by 0.001.
_RATE_SHARE = 2e-4
#: Names that metadata has for a codec, and FFmpeg's name.
_CODECS = {
    "avc": "h264", "avc1": "h264", "libx264": "h264", "h.264": "h264",
    "h265": "hevc", "h.265": "hevc", "libx265": "hevc", "hev1": "hevc", "hvc1": "hevc",
    "libsvtav1": "av1", "libdav1d": "av1", "libaom-av1": "av1", "av01": "av1",
    "mp4v": "mpeg4", "libvpx-vp9": "vp9", "libvpx": "vp8",
}  # fmt: skip


@dataclass(frozen=True)
class DeclaredVideo:
    """The facts that a source declares about one video file. None is unknown.

    Attributes:
        camera: the source's name of the camera.
        name: the source's name of the file.
        height, width: of the frames.
        fps: frames per second.
        codec: such as `av1` or `h264`; another name of the same codec counts as equal.
        frames: the number of frames.
        depth: whether the frames are depth maps.
        checksum: of the file, as `gear_data.storage.atomic.checksum` returns it.
        places: where the episodes of the file are; None if the times of the blocks say so exactly.
    """

    camera: str
    name: str
    height: int | None = None
    width: int | None = None
    fps: float | None = None
    codec: str | None = None
    frames: int | None = None
    depth: bool = False
    checksum: str | None = None
    places: DeclaredPlaces | None = None


def video_findings(video: VideoFile, declared: DeclaredVideo) -> list[Finding]:
    """Returns the findings about one file; a `FindingLog` counts files together.

    Call it once for each file and camera, when the file was indexed, and add the findings in the order of the files.
    The codes are `video-size-differs`, `video-codec-differs`, `video-fps-differs`, `video-frames-differ`,
    `depth-as-rgb`, `long-gop` and `variable-frame-rate`. The column of a finding is the camera, and its file is the
    source's file.

    Args:
        video: the index of the file.
        declared: what the source says about the file.
    """
    found = {
        "video-size-differs": _size(video, declared),
        "video-codec-differs": _codec(video, declared),
        "video-fps-differs": _rate(video, declared),
        "video-frames-differ": _frames(video, declared),
        "depth-as-rgb": _depth(declared),
        "long-gop": _groups(video),
        "variable-frame-rate": _variable_rate(video),
    }
    return [
        Finding(code, message, 1, declared.name, None, declared.camera)
        for code, message in found.items()
        if message is not None
    ]


def _size(video: VideoFile, declared: DeclaredVideo) -> str | None:
    if declared.height in (None, video.height) and declared.width in (None, video.width):
        return None
    return (
        f"the metadata declares frames of {declared.height} x {declared.width}, and the file has {video.height} x "
        f"{video.width}, which is used"
    )


def _codec(video: VideoFile, declared: DeclaredVideo) -> str | None:
    if declared.codec is None or _CODECS.get(name := declared.codec.lower(), name) == video.codec:
        return None
    return f"the metadata declares the codec {declared.codec}, and the file has {video.codec}, which is used"


def _rate(video: VideoFile, declared: DeclaredVideo) -> str | None:
    rate = _mean_rate(video)
    if declared.fps is None or rate is None:
        return None
    # The times of a file are rounded to its time base.
    rounding = float(video.time_base) / (video.times[-1] - video.times[0])
    if abs(rate / declared.fps - 1) <= _RATE_SHARE + rounding:
        return None
    return f"the metadata declares {declared.fps:g} frames per second, and the file has {rate:.6g}; frames are kept"


def _mean_rate(video: VideoFile) -> float | None:
    """Returns the mean of frames per second; the median if the rate is variable."""
    if video.num_frames < 2 or _variable_rate(video) is not None:
        return video.fps
    duration = float(video.times[-1] - video.times[0])
    return (video.num_frames - 1) / duration if duration > 0 else None


def _frames(video: VideoFile, declared: DeclaredVideo) -> str | None:
    if declared.frames in (None, video.num_frames):
        return None
    return f"the episodes of the file have {declared.frames} frames, and the file has {video.num_frames}"


def _depth(declared: DeclaredVideo) -> str | None:
    if not declared.depth:
        return None
    return "the metadata declares depth maps; frames are read as RGB of 8 bits, as the video stores them"


def _groups(video: VideoFile) -> str | None:
    groups = frame_groups(video)
    counts = np.bincount(groups.group)
    longest = int(counts.max()) if len(counts) else 0
    if longest <= LONG_GOP:
        return None
    return (
        f"a group of pictures has {longest} frames; reading a frame at random decodes up to {longest}: encode with "
        f"more key frames (ffmpeg -g 2)"
    )


def _variable_rate(video: VideoFile) -> str | None:
    if video.num_frames < 3:
        return None
    distances = np.diff(video.times)
    usual = float(np.median(distances))
    # Two roundings to the time base may add up.
    tolerance = max(_TOLERANCE, 1.01 * float(video.time_base))
    wrong = np.flatnonzero(np.abs(distances - usual) > tolerance)
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"frames {first} and {first + 1} are {distances[first]:.6g} s apart, and others {usual:.6g} s; "
        "the frame of a step is found by its number"
    )
