"""Depth videos of LeRobot 0.6: what `meta/info.json` says about the numbers of their pixels.

Source: `is_depth_map` and `DepthEncoderConfig` of https://github.com/huggingface/lerobot, `lerobot/configs/video.py`,
commit 7427f31. LeRobot reads keys that are missing as its defaults, and one marker of several is enough for it. Here
both are errors, since the defaults may be others than those of the recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gear_data.errors import CorruptSourceError, InvalidArgumentError
from gear_data.ingest.sources.lerobot.metadata import LeRobotInfo
from gear_data.ingest.videos.storage_options import JPEG, VideoStorage
from gear_data.schema import DepthFormat

#: The keys of a feature that mark depth: in `info`, and in `video_info`. The second name is the older one.
_MARKERS = (("info", "is_depth_map"), ("info", "video.is_depth_map"), ("video_info", "video.is_depth_map"))
_NUMBERS = {"video.depth_min": 0.01, "video.depth_max": 10.0, "video.shift": 3.5}
_LOGARITHMIC = "video.use_log"
#: LeRobot's defaults.
_DEFAULTS: Mapping[str, Any] = {**_NUMBERS, _LOGARITHMIC: True}
#: Parts of the names of pixel formats that hold 12 bits.
_DEEP = ("12le", "12be")


def is_depth(info: LeRobotInfo, key: str) -> bool:
    """Returns whether a feature is marked as depth.

    Raises:
        CorruptSourceError: a marker is no boolean, or two markers differ.
    """
    feature = info.features[key]
    found = {}
    for part, name in _MARKERS:
        value = _part(feature, part).get(name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(info, key, f"{part}.{name}", f"is {value!r}, no boolean", "set it to true or false")
        if value is not None:
            found[f"{part}.{name}"] = value
    one, *others = found or [""]
    for two in others:
        if found[two] != found[one]:
            problem = f"is {_json(found[two])}, and {one} is {_json(found[one])}: it is not clear whether this is depth"
            raise _wrong(info, key, two, problem, "set both to true, or both to false")
    return any(found.values())


def depth_format(info: LeRobotInfo, key: str, videos: VideoStorage) -> DepthFormat | None:
    """Returns the meaning of the numbers of a camera's pixels; None if they are RGB.

    A camera that is marked as depth, and has none of the keys, is RGB of 8 bits: datasets before LeRobot 0.6 are so.

    Args:
        info: the metadata.
        key: the camera.
        videos: what becomes of the video files.

    Raises:
        CorruptSourceError: a key is missing or has a wrong value, or the keys contradict the marker.
        InvalidArgumentError: depth cannot be stored in this way.
    """
    depth, details = is_depth(info, key), _part(info.features[key], "info")
    given = {name: details[name] for name in _DEFAULTS if details.get(name) is not None}
    if given and not depth:
        problem = f"is not true, and info.{next(iter(given))} says how depth is quantised"
        raise _wrong(info, key, "info.is_depth_map", problem, "set it to true, or remove the keys of the quantisation")
    form = details.get("video.pix_fmt")
    deep = isinstance(form, str) and form.endswith(_DEEP)
    if not depth or (not given and not deep):
        return None
    for name, default in _DEFAULTS.items():
        if name not in given:
            hint = f"add the value of the recording; LeRobot's default, and what LeRobot reads, is {_json(default)}"
            raise _wrong(info, key, f"info.{name}", "is missing, and the video is quantised depth", hint)
    for name in _NUMBERS:
        if isinstance(given[name], bool) or not isinstance(given[name], int | float):
            raise _wrong(info, key, f"info.{name}", f"is {given[name]!r}, not a number", "set it to a length in metres")
    if not isinstance(given[_LOGARITHMIC], bool):
        problem = f"is {given[_LOGARITHMIC]!r}, no boolean"
        raise _wrong(info, key, f"info.{_LOGARITHMIC}", problem, "set it to true or false")
    first, last, shift = (float(given[name]) for name in _NUMBERS)
    found = DepthFormat(first, last, shift, given[_LOGARITHMIC], videos.depth_unit)
    if not found.sound:
        problem = f"is {first:g}, with video.depth_max {last:g} and video.shift {shift:g}"
        hint = "depth_min must be less than depth_max, and in logarithmic form depth_min + shift more than 0"
        raise _wrong(info, key, "info.video.depth_min", problem, hint)
    if videos.mode == JPEG or videos.size is not None:
        problem = "become JPEG files" if videos.mode == JPEG else "be scaled"
        raise InvalidArgumentError(
            f"is quantised depth, which cannot {problem}",
            file=info.name,
            column=key,
            hint="give --videos keep, link or frames without --video-size, or leave the camera out with --columns",
        )
    return found


def _part(feature: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = feature.get(name)
    return part if isinstance(part, dict) else {}


def _json(value: Any) -> str:
    return str(value).lower()


def _wrong(info: LeRobotInfo, key: str, name: str, problem: str, hint: str) -> CorruptSourceError:
    return CorruptSourceError(f"features.{key}.{name} {problem}", file=info.name, column=key, hint=hint)
