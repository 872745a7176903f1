"""Errors of video files and their metadata, with the advice that each gives. Following it starts processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gear_data
from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnsupportedColumnError
from tests.support.advice.rows import Advice, Scene
from tests.support.cameras.depth import KEY, QUANTISED, write_depth


def _depth(**info: Any) -> Callable[[Path], Path]:
    """Returns a maker of two episodes of depth; None leaves a key of `info` out."""
    return lambda folder: write_depth(folder / "robot", (6, 6), **info)[0]


def _with(**info: Any) -> Callable[[Path], Path]:
    """Returns a function that corrects keys of a source's `info`; None removes a key."""

    def corrected(source: Path) -> Path:
        file = source / "meta/info.json"
        text = json.loads(file.read_text())
        details = {**text["features"][KEY]["info"], **info}
        text["features"][KEY]["info"] = {name: value for name, value in details.items() if value is not None}
        file.write_text(json.dumps(text))
        return source

    return corrected


def _two_ranges(folder: Path) -> list[Path]:
    first, _ = write_depth(folder / "a", (6,))
    second, _ = write_depth(folder / "b", (6,), **{"video.depth_max": 5.0})
    return [first, second]


def _merged(folder: Path) -> Path:
    for name in ("a", "b"):
        gear_data.convert(folder / name, folder / f"{name}-frames", videos="frames")
    gear_data.merge([folder / f"{name}-frames" for name in ("a", "b")], folder / "merged")
    return folder / "merged"


_KEYS = [name for name in QUANTISED if name.startswith("video.") and name not in ("video.pix_fmt", "video.codec")]
_HALF = {"videos": gear_data.VideoStorage(mode="frames", size=(24, 35))}
_STATE = "--columns observations,actions,timestamp"

VIDEOS: dict[str, Advice | Scene] = {
    "depth, a marker that is no boolean": Advice(
        _depth(is_depth_map="yes"), CorruptSourceError, "set it to true or false", source=_with(is_depth_map=True)
    ),
    "depth, a form that is no boolean": Advice(
        _depth(**{"video.use_log": 1}), CorruptSourceError, "set it to true or false",
        source=_with(**{"video.use_log": True}),
    ),
    "depth, two markers": Advice(
        _depth(**{"video.is_depth_map": False}), CorruptSourceError, "set both to true",
        source=_with(**{"video.is_depth_map": True}),
    ),
    "depth, no marker: depth": Advice(
        _depth(is_depth_map=None), CorruptSourceError, "set it to true", source=_with(is_depth_map=True)
    ),
    "depth, no marker: RGB": Advice(
        _depth(is_depth_map=None), CorruptSourceError, "remove the keys of the quantisation",
        source=_with(**dict.fromkeys(_KEYS)),
    ),
    "depth, a missing number": Advice(
        _depth(**{"video.shift": None}), CorruptSourceError, "what LeRobot reads, is 3.5",
        source=_with(**{"video.shift": 3.5}),
    ),
    "depth, a text for a number": Advice(
        _depth(**{"video.depth_max": "far"}), CorruptSourceError, "set it to a length in metres",
        source=_with(**{"video.depth_max": 10}),
    ),
    "depth, an empty range": Advice(
        _depth(**{"video.depth_max": 0.01}), CorruptSourceError, "depth_min must be less than depth_max",
        source=_with(**{"video.depth_max": 10}),
    ),
    "depth, to be scaled: without a size": Advice(
        _depth(), InvalidArgumentError, "frames without --video-size", "--videos frames", _HALF
    ),
    "depth, to be scaled: without the camera": Advice(
        _depth(), InvalidArgumentError, "leave the camera out with --columns", _STATE, _HALF
    ),
    "depth of two ranges: as columns": Scene(
        lambda folder: gear_data.convert(_two_ranges(folder), folder / "d"), UnsupportedColumnError,
        "convert each by itself, with --videos frames and one --depth-unit, and merge the datasets", _merged,
    ),
}  # fmt: skip
