"""Errors of video files and their metadata, with the advice that each gives. Following it starts processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av

import gear_data
from gear_data import VideoStorage
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    InvalidArgumentError,
    SourceChangedError,
    UnsupportedColumnError,
)
from gear_data.ingest.videos import staged_index
from tests.support.advice.places import convert, damaged, verified
from tests.support.advice.rows import Advice, Scene, jsonl
from tests.support.advice.runs import patched
from tests.support.cameras.depth import KEY, QUANTISED, write_depth
from tests.support.cameras.filmed import FPS, moving_bar, write_video
from tests.support.cameras.robots import FRONT, WRIST, write_robot
from tests.support.rollouts import make_rollouts


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


ROLLOUTS = make_rollouts(2, seed=1, short=False)
STEPS = sum(map(len, ROLLOUTS))
ROWS = ["observations", "actions", "rewards"]


def _robots(folder: Path, *, height: int = 24, second: tuple[str, ...] = (FRONT,)) -> list[Path]:
    """Writes two datasets. The second one has frames of this height, and these cameras."""
    shutil.rmtree(folder / "robots", ignore_errors=True)
    write_robot(folder / "robots/one", ROLLOUTS, (FRONT,))
    write_robot(folder / "robots/two", make_rollouts(2, seed=2, short=False), second, height=height)
    return [folder / "robots/one", folder / "robots/two"]


BOTH = STEPS + sum(map(len, make_rollouts(2, seed=2, short=False)))


def _robot(change: Callable[[Path], Any]) -> Callable[[Path], Path]:
    """Returns a maker of a dataset of which the videos of a camera are changed."""

    def make(folder: Path) -> Path:
        write_robot(folder / "robot", ROLLOUTS, (FRONT,))
        change(folder / "robot/videos/chunk-000/observation.images.front")
        return folder / "robot"

    return make


def _whole(source: Path) -> Path:
    shutil.rmtree(source)
    return _robot(lambda _: None)(source.parent)


def _table(videos: int, *, bad: bool = False) -> Callable[[Path], Path]:
    """Returns a maker of three episodes, of which the second one may be malformed, and some videos."""

    def make(folder: Path) -> Path:
        rows = [{"observations": [float(i)], "actions": 0.5, "terminated": i % 6 == 5} for i in range(18)]
        if bad:
            rows[8]["observations"] = [0.0, 1.0]
        jsonl(*rows)(folder)
        for i in range(videos):
            write_video(folder / f"{'abc'[i]}.mp4", moving_bar(6, 24, 32))
        return folder

    return make


def _numbered(first: int) -> Callable[[Path], Path]:
    """Returns a maker of the episodes 2, 0 and 1, and of three videos that are numbered from `first` on."""

    def make(folder: Path) -> Path:
        rows = [{"episode": (2, 0, 1)[i // 6], "observations": [float(i)], "actions": 0.5} for i in range(18)]
        jsonl(*rows)(folder)
        for video in folder.glob("*.mp4"):
            video.unlink()
        for i in range(3):
            write_video(folder / f"{first + i}.mp4", moving_bar(6, 24, 32))
        return folder

    return make


def _same_video_twice(videos: Path) -> None:
    shutil.copy(videos / "episode_000000.mp4", videos / "episode_0.mp4")


def _two_streams(videos: Path) -> None:
    frames = moving_bar(len(ROLLOUTS[1]), 24, 32)
    with av.open(str(videos / "episode_000001.mp4"), "w") as container:
        streams = [container.add_stream("mpeg4", FPS) for _ in range(2)]
        for stream in streams:
            stream.height, stream.width, stream.pix_fmt = 24, 32, "yuv420p"
        for stream in streams:
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())


def _grown(folder: Path) -> Any:
    """Converts a dataset of which a video becomes longer while it is read."""
    place = staged_index.place

    def slow(store: Any, source: Path, *arguments: Any) -> None:
        with source.open("ab") as stream:
            stream.write(b"more")
        place(store, source, *arguments)

    source = _robot(lambda _: None)(folder)
    return patched(staged_index, "place", slow, lambda: convert(folder, source=source, jobs=1))


def _repair(folder: Path) -> Any:
    """Repairs a dataset of which a video is damaged, from a source that has another video."""
    source = _robot(lambda _: None)(folder)
    shutil.copytree(source, folder / "original")
    convert(folder, source=source)
    damaged(folder / "dataset", "*.mp4")
    for path, rollout in zip(sorted(source.rglob("*.mp4")), ROLLOUTS, strict=True):
        write_video(path, moving_bar(len(rollout), 24, 32)[:, ::-1] // 2)
    return gear_data.repair(folder / "dataset", source, progress=False)


def _restored(folder: Path) -> Path:
    shutil.rmtree(folder / "robot")
    shutil.copytree(folder / "original", folder / "robot")
    gear_data.repair(folder / "dataset", folder / "robot", progress=False)
    return verified(folder / "dataset")


def _merged_robots(folder: Path, **arguments: Any) -> Path:
    """Merges datasets whose frames have two sizes, converted with these arguments."""
    for path in _robots(folder, height=32):
        convert(folder, path.name, path, overwrite=True, **arguments)
    gear_data.merge([folder / "one", folder / "two"], folder / "both", progress=False)
    return folder / "both"


_TOP = {"videos": VideoStorage(cameras={"observations.images.top": "*.mp4"}), "format": "step-rows"}
_SKIP = {**_TOP, "on_bad_episode": "skip"}
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
    "two datasets, frames of two sizes: scaled": Scene(
        _merged_robots, UnsupportedColumnError, "convert both with --videos frames --video-size",
        lambda folder: _merged_robots(folder, videos=VideoStorage(mode="frames", size=(24, 32))), BOTH,
    ),
    "two datasets, frames of two sizes: without": Scene(
        _merged_robots, UnsupportedColumnError, "leave the camera out with --columns",
        lambda folder: _merged_robots(folder, columns=ROWS), BOTH,
    ),
    "two sources, frames of two sizes: scaled": Scene(
        lambda folder: convert(folder, source=_robots(folder, height=32)), BadEpisodeError,
        "scale all frames with --videos frames --video-size",
        lambda folder: convert(
            folder, source=_robots(folder, height=32), videos=VideoStorage(mode="frames", size=(24, 32))
        ),
        BOTH,
    ),
    "two sources, a camera of one: without": Scene(
        lambda folder: convert(folder, source=_robots(folder, second=(WRIST,))), UnsupportedColumnError,
        "leave the camera out with --columns",
        lambda folder: convert(folder, source=_robots(folder, second=(WRIST,)), columns=ROWS), BOTH,
    ),
    "two sources, a camera of one: separately": Scene(
        lambda folder: convert(folder, source=_robots(folder, second=(WRIST,))), UnsupportedColumnError,
        "or convert the sources separately",
        lambda folder: [convert(folder, path.name, path) for path in _robots(folder, second=(WRIST,))][1], BOTH - STEPS,
    ),
    "a video of another episode: kept one": Advice(
        _robot(_same_video_twice), CorruptSourceError, "keep one of the two files",
        source=lambda source: (next(source.rglob("episode_0.mp4")).unlink(), source)[1], steps=STEPS,
    ),
    "a video that is missing: restored": Advice(
        _robot(lambda videos: (videos / "episode_000001.mp4").unlink()), BadEpisodeError, "restore the file",
        source=_whole, steps=STEPS,
    ),
    "a video that is missing: without the episode": Advice(
        _robot(lambda videos: (videos / "episode_000001.mp4").unlink()), BadEpisodeError, "--on-bad-episode skip",
        "--on-bad-episode skip", steps=len(ROLLOUTS[0]),
    ),
    "a video that is missing: without the camera": Advice(
        _robot(lambda videos: (videos / "episode_000001.mp4").unlink()), BadEpisodeError, "--columns",
        f"--columns {','.join(ROWS)}", steps=STEPS,
    ),
    "a video of two streams: encoded again": Advice(
        _robot(_two_streams), BadEpisodeError, "or encode the video again (ffmpeg -i OLD", source=_whole, steps=STEPS,
    ),
    "a video for two episodes": Advice(
        _table(2), CorruptSourceError, "give one video for each episode", refused=_TOP,
        source=_table(3), steps=18, arguments=_TOP,
    ),
    "videos from 1 of episodes in any order": Advice(
        _numbered(1), CorruptSourceError, "number the episodes and the videos from 0", refused=_TOP,
        source=_numbered(0), steps=18, arguments=_TOP,
    ),
    "videos in order, and a malformed episode: repaired": Advice(
        _table(3, bad=True), CorruptSourceError, "repair the source",
        refused=_SKIP, source=_table(3), steps=18, arguments=_SKIP,
    ),
    "videos in order, and a malformed episode: without videos": Advice(
        _table(3, bad=True), CorruptSourceError, "or leave --video-column out",
        refused=_SKIP, steps=12,
        arguments={"on_bad_episode": "skip", "format": "step-rows"},
    ),
    "a video that becomes longer": Scene(
        _grown, SourceChangedError, "convert again with --overwrite",
        lambda folder: convert(folder, source=_whole(folder / "robot"), overwrite=True), STEPS,
    ),
    "a repair from other videos: restored": Scene(
        _repair, SourceChangedError, "restore the original file", _restored, STEPS
    ),
    "a repair from other videos: converted": Scene(
        _repair, SourceChangedError, "or convert the source again",
        lambda folder: convert(folder, source=folder / "robot", overwrite=True), STEPS,
    ),
}  # fmt: skip
