"""Checks of the arguments about cameras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.ingest.pipeline.names import canonical_name, is_column_name

#: Ways to store videos: `convert(videos=...)`.
KEEP, LINK, FRAMES, JPEG = MODES = ("keep", "link", "frames", "jpeg")
#: Most pixels of a side of a decoded frame.
_LARGEST_SIDE = 8192


def check_videos(mode: Any, size: Sequence[int] | None) -> tuple[int, int] | None:
    """Checks the arguments `videos` and `video_size`, and returns the size.

    Raises:
        UnknownNameError: there is no such way to store videos.
        InvalidArgumentError: the size is not two counts of pixels, or no frame is decoded.
    """
    if mode not in MODES:
        raise unknown_name("way to store videos", mode, MODES)
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, list | tuple) else ()
    counts = all(isinstance(side, int) and not isinstance(side, bool) and 0 < side <= _LARGEST_SIDE for side in sides)
    if len(sides) != 2 or not counts:
        raise InvalidArgumentError(
            f"video_size must be (height, width), each from 1 to {_LARGEST_SIDE}, not {size!r}",
            hint="such as video_size=(224, 224), or --video-size 224x224",
        )
    if mode in (KEEP, LINK):
        raise InvalidArgumentError(
            f"video_size is about decoded frames, and videos={mode!r} stores the files as they are",
            hint=f"leave it out, or give videos={FRAMES!r} or {JPEG!r}; loaders have an option for the size of frames",
        )
    return sides[0], sides[1]


def check_video_columns(columns: Any) -> dict[str, str]:
    """Checks the argument `video_columns` and returns it.

    Raises:
        InvalidArgumentError: it is no mapping of canonical names to patterns.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(item, str) for pair in columns.items() for item in pair):
        raise InvalidArgumentError(
            f"video_columns must map a camera to a pattern of files, not be {columns!r}",
            hint="such as video_columns={'observations.images.top': 'videos/top/*.mp4'}",
        )
    for name, pattern in columns.items():
        if canonical_name(name) != name or not is_column_name(name):
            hint = f"use the name '{canonical_name(name)}'" if is_column_name(canonical_name(name)) else "give a name"
            raise InvalidArgumentError(f"a camera cannot have the name {name!r}", hint=hint)
        if not pattern:
            raise InvalidArgumentError("the pattern of the camera's files is empty", column=name, hint="give NAME=GLOB")
    return dict(columns)
