"""VideoStorage: the video files of cameras, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from gear_data.common.keywords import check_group, suggest_fields
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.ingest.pipeline.names import canonical_name, is_column_name
from gear_data.words import DepthUnit, VideoMode

#: Ways to store videos.
MODES: tuple[VideoMode, ...] = get_args(VideoMode)
KEEP, LINK, FRAMES, JPEG = MODES
#: Most pixels of a side of a decoded frame.
_LARGEST_SIDE = 8192


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class VideoStorage:
    """The video files of cameras, and what becomes of them.

    `convert(videos=...)` and `lint(videos=...)` take it.

    Attributes:
        cameras: new camera -> pattern of its video files: `{"observations.images.top": "videos/top/*.mp4"}`. Each
            file is one episode. A number in the files' names is the number of the episode; without numbers, the files
            are the episodes in natural order.
        mode: `keep` puts the files into the dataset's folder `videos/`, as clones or hard links where the file system
            can, else as copies. `link` refers to them where they are. `frames` decodes them to uint8 columns
            [H, W, 3], and `jpeg` to a JPEG file of quality 95 for each step.
        size: (height, width) of the frames of `frames` and `jpeg`. None keeps the size of the video.
        depth_unit: the unit of LeRobot's quantised depth: `mm` for whole millimetres, as LeRobot reads depth by
            default, or `m` for metres.

    Raises:
        UnknownNameError: there is no such mode or unit.
        InvalidArgumentError: a camera is no canonical name, a pattern is empty, the size is not two counts of pixels,
            or no frame is decoded to that size.
    """

    # The names in a manifest are the names of the options of the command line.
    cameras: Mapping[str, str] = field(default_factory=dict, metadata={"recorded": "video_columns"})
    mode: VideoMode = field(default="keep", metadata={"recorded": "videos"})
    size: tuple[int, int] | None = field(default=None, metadata={"recorded": "video_size"})
    # Manifests of datasets without depth stay as they were.
    depth_unit: DepthUnit = field(default="mm", metadata={"only_if_given": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "cameras", _checked_cameras(self.cameras))
        if self.mode not in MODES:
            raise unknown_name("way to store videos", self.mode, MODES)
        if self.depth_unit not in get_args(DepthUnit):
            raise unknown_name("unit of depth", self.depth_unit, get_args(DepthUnit))
        if self.size is not None:
            object.__setattr__(self, "size", _checked_size(self.size, self.mode))


def video_storage(videos: VideoMode | VideoStorage) -> VideoStorage:
    """Returns the options of the argument `videos`: a mode, or options.

    Raises:
        UnknownNameError, InvalidArgumentError: it is neither.
    """
    if isinstance(videos, str):
        return VideoStorage(mode=videos)
    check_group("videos", videos, VideoStorage)
    return videos


def _checked_size(size: Any, mode: VideoMode) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, list | tuple) else ()
    counts = all(isinstance(side, int) and not isinstance(side, bool) and 0 < side <= _LARGEST_SIDE for side in sides)
    if len(sides) != 2 or not counts:
        raise InvalidArgumentError(
            f"the size of frames must be (height, width), each from 1 to {_LARGEST_SIDE}, not {size!r}",
            hint="such as VideoStorage(mode='frames', size=(224, 224)), or --videos frames --video-size 224x224",
        )
    if mode in (KEEP, LINK):
        raise InvalidArgumentError(
            f"the size of frames is given, but the mode {mode!r} stores video files as they are",
            hint=f"leave size (--video-size) out, or give mode={FRAMES!r} or {JPEG!r} (--videos); loaders have an "
            "option for the size of frames",
        )
    return sides[0], sides[1]


def _checked_cameras(cameras: Any) -> dict[str, str]:
    if not isinstance(cameras, Mapping) or not all(isinstance(item, str) for pair in cameras.items() for item in pair):
        raise InvalidArgumentError(
            f"cameras must map a camera to a pattern of files, not be {cameras!r}",
            hint="such as VideoStorage(cameras={'observations.images.top': 'videos/top/*.mp4'})",
        )
    for name, pattern in cameras.items():
        if canonical_name(name) != name or not is_column_name(name):
            hint = f"use the name '{canonical_name(name)}'" if is_column_name(canonical_name(name)) else "give a name"
            raise InvalidArgumentError(f"a camera cannot have the name {name!r}", hint=hint)
        if not pattern:
            raise InvalidArgumentError(
                "the pattern of the camera's files is empty", column=name, hint=f"such as 'videos/{name}/*.mp4'"
            )
    return dict(cameras)
