"""LeRobot datasets with cameras, made for benchmarks/video.py, lerobot_train.py and in_place.py.

The files are written here, without gear_data, so that LeRobot and gear_data read the same ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gear_data.video.encoding.encoder import open_encoder

FPS = 30
STATE, ACTION = 14, 14
#: The camera as LeRobot names it.
CAMERA = "observation.images.front"
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_DATA_V21 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_VIDEO_V21 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
_VECTORS = {"observation.state": STATE, "action": ACTION}


@dataclass(frozen=True)
class Codec:
    """How the camera's file is encoded.

    Attributes:
        encoder: FFmpeg's name.
        group: frames from one key frame to the next.
        options: of the encoder.
    """

    encoder: str
    group: int
    options: dict[str, str]


#: Name -> codec. AV1 is as LeRobot encodes it.
CODECS = {
    "h264": Codec("libx264", 12, {"preset": "veryfast", "x264-params": "scenecut=0"}),
    "mpeg4": Codec("mpeg4", 12, {"qscale": "5"}),
    "av1": Codec("libsvtav1", 2, {"preset": "12", "crf": "30"}),
}


@dataclass(frozen=True)
class Size:
    """Size of a dataset: `frames` frames of height x width, in episodes of `episode` steps."""

    frames: int
    episode: int
    height: int
    width: int


def scene_frame(scene: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
    """Returns a frame of a fixed camera: a textured block moves over a scene, below a bar that says the frame's number.

    Robots' cameras are fixed, and most of a frame is the frame before.
    """
    height, width = scene.shape[:2]
    frame = scene.copy()
    size = height // 4
    y = height // 4 + abs((2 * number) % height - height // 2)
    x = abs((3 * number) % (2 * (width - size)) - (width - size))
    frame[y : y + size, x : x + size] = scene[:size, :size][::-1]
    frame[: height // 16] = 255 * (number % 2)
    frame[: height // 16, : 1 + number % width] = (200, 40, 90)
    return frame


def write_video(path: Path, codec: Codec, size: Size, seed: int) -> None:
    """Encodes all episodes into one file."""
    os.environ.setdefault("SVT_LOG", "1")
    random = np.random.default_rng(seed)
    blocks = random.integers(16, 240, (-(-size.height // 32), -(-size.width // 32), 3), np.uint8)
    scene = blocks.repeat(32, 0).repeat(32, 1)[: size.height, : size.width]
    # The texture of surfaces.
    scene = (scene + random.integers(-3, 4, scene.shape)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec.encoder, rate=FPS, options=codec.options)
        stream.height, stream.width, stream.pix_fmt = size.height, size.width, "yuv420p"
        stream.codec_context.gop_size = codec.group
        open_encoder(stream.codec_context)
        for number in range(size.frames):
            image = scene_frame(scene, number)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))


def write_lerobot(folder: Path, codec: Codec, size: Size, seed: int, cameras: Sequence[str] = (CAMERA,)) -> Path:
    """Writes a LeRobot v3.0 dataset: one data file, and one video file a camera. Returns the folder."""
    columns = _columns(size, seed)
    starts = np.arange(0, size.frames, size.episode)
    lengths = np.minimum(starts + size.episode, size.frames) - starts
    count, zeros = len(starts), np.zeros(len(starts), np.int64)
    places = {"chunk_index": 0, "file_index": 0}
    _write_table(folder / _DATA.format(**places), columns)
    for number, camera in enumerate(cameras):
        write_video(folder / _VIDEO.format(video_key=camera, **places), codec, size, seed + number)
    parts = ("data", "meta/episodes", *(f"videos/{camera}" for camera in cameras))
    episodes: dict[str, Any] = {
        "episode_index": np.arange(count),
        "tasks": pa.array([["move"]] * count, pa.list_(pa.string())),
        "length": lengths,
        **{f"{part}/{name}": zeros for part in parts for name in places},
        "dataset_from_index": starts,
        "dataset_to_index": starts + lengths,
    }
    for camera in cameras:
        episodes[f"videos/{camera}/from_timestamp"] = starts / FPS
        episodes[f"videos/{camera}/to_timestamp"] = (starts + lengths) / FPS
    _write_table(folder / "meta/episodes/chunk-000/file-000.parquet", episodes)
    pd.DataFrame({"task_index": [0]}, index=["move"]).to_parquet(folder / "meta/tasks.parquet")
    sizes = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    info = _info("v3.0", size, cameras) | sizes | {"data_path": _DATA, "video_path": _VIDEO}
    (folder / "meta/info.json").write_text(json.dumps(info))
    (folder / "meta/stats.json").write_text("{}")
    return folder


def write_lerobot_v21(folder: Path, codec: Codec, size: Size, seed: int, cameras: Sequence[str] = (CAMERA,)) -> Path:
    """Writes a LeRobot v2.1 dataset: a data file, and a video file a camera, for each episode. Returns the folder."""
    columns, info, listed = _columns(size, seed), _info("v2.1", size, cameras), []
    for number, start in enumerate(range(0, size.frames, size.episode)):
        stop = min(start + size.episode, size.frames)
        place = {"episode_chunk": 0, "episode_index": number}
        _write_table(folder / _DATA_V21.format(**place), {name: each[start:stop] for name, each in columns.items()})
        of_episode = replace(size, frames=stop - start)
        for each, camera in enumerate(cameras):
            path = folder / _VIDEO_V21.format(video_key=camera, **place)
            write_video(path, codec, of_episode, seed + each + number * len(cameras))
        listed.append({"episode_index": number, "tasks": ["move"], "length": stop - start})
    info |= {"data_path": _DATA_V21, "video_path": _VIDEO_V21}
    (folder / "meta").mkdir()
    (folder / "meta/info.json").write_text(json.dumps(info))
    (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "move"}\n')
    (folder / "meta/episodes.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in listed))
    return folder


def _columns(size: Size, seed: int) -> dict[str, Any]:
    """Returns the columns of all frames."""
    random = np.random.default_rng(seed)
    step = np.arange(size.frames) % size.episode
    columns: dict[str, Any] = {
        name: pa.FixedSizeListArray.from_arrays(
            pa.array(random.standard_normal(size.frames * width, dtype=np.float32)), width
        )
        for name, width in _VECTORS.items()
    }
    columns["timestamp"] = (step / FPS).astype(np.float32)
    columns |= {"frame_index": step, "episode_index": np.arange(size.frames) // size.episode}
    return columns | {"index": np.arange(size.frames), "task_index": np.zeros(size.frames, np.int64)}


def _info(version: str, size: Size, cameras: Sequence[str]) -> dict[str, Any]:
    """Returns `meta/info.json`, without the templates of names."""
    count = -(-size.frames // size.episode)
    features: dict[str, Any] = {name: {"dtype": "float32", "shape": [n], "names": None} for name, n in _VECTORS.items()}
    features |= {
        camera: {
            "dtype": "video", "shape": [size.height, size.width, 3], "names": ["height", "width", "channels"],
            "info": {"video.fps": FPS, "video.height": size.height, "video.width": size.width, "video.channels": 3},
        }
        for camera in cameras
    }  # fmt: skip
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return {
        "codebase_version": version, "robot_type": "arm", "total_episodes": count, "total_frames": size.frames,
        "total_tasks": 1, "chunks_size": 1000, "fps": FPS, "splits": {"train": f"0:{count}"}, "features": features,
    }  # fmt: skip


def video_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.mp4"))


def drop_page_cache(folder: Path) -> None:
    """Asks the system to forget the pages of all files in a folder. Pages that a process maps stay."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
