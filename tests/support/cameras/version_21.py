"""A LeRobot v2.1 dataset with two cameras, which LeRobot's own converter reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.cameras.filmed import FPS, encode_frames, moving_bar

#: Camera -> height and width of its frames.
CAMERAS = {"observation.images.front": (48, 64), "observation.images.wrist": (48, 64)}
_PATH = "{kind}/chunk-{{episode_chunk:03d}}/{camera}episode_{{episode_index:06d}}.{ending}"


def write_version_21(folder: Path, lengths: Iterable[int] = (16, 4, 12, 1, 7)) -> None:
    """Writes a dataset as LeRobot 0.3 does: a Parquet file for each episode, and a video for each camera."""
    random, lengths, features = np.random.default_rng(0), list(lengths), _features()
    (folder / "meta").mkdir(parents=True)
    (folder / "data/chunk-000").mkdir(parents=True)
    first = 0
    episodes: list[dict[str, Any]] = []
    statistics: list[dict[str, Any]] = []
    for number, length in enumerate(lengths):
        rows = {
            "observation.state": random.normal(size=(length, 3)).astype(np.float32),
            "action": random.normal(size=(length, 2)).astype(np.float32),
            "next.reward": random.normal(size=length).astype(np.float32),
            "next.done": np.arange(length) == length - 1,
            "timestamp": (np.arange(length) / FPS).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, number),
            "index": np.arange(first, first + length),
            "task_index": np.full(length, number % 2),
        }
        found = {key: _statistics(values, axis=0) for key, values in rows.items()}
        table = pa.table({key: values.tolist() for key, values in rows.items()}, _schema(rows))
        pq.write_table(table, folder / f"data/chunk-000/episode_{number:06d}.parquet")
        for place, (key, sides) in enumerate(CAMERAS.items()):
            # Text in the first frames would repeat between episodes: each episode is darker than the one before.
            frames = moving_bar(length, *sides)[:, :, :: 1 - 2 * place] // (number + 1)
            path = folder / f"videos/chunk-000/{key}/episode_{number:06d}.mp4"
            # LeRobot's converter joins no files with B frames.
            encode_frames(path, frames, "libx264", FPS, "rgb24", "yuv420p", {"g": "4", "bf": "0"})
            found[key] = _statistics(np.moveaxis(frames / 255, -1, 1), axis=(0, 2, 3))
        episodes.append({"episode_index": number, "tasks": [("pick", "place")[number % 2]], "length": length})
        statistics.append({"episode_index": number, "stats": found})
        first += length
    info = {
        "codebase_version": "v2.1", "robot_type": "arm", "total_episodes": len(lengths), "total_frames": first,
        "total_tasks": 2, "total_videos": 2 * len(lengths), "total_chunks": 1, "chunks_size": 1000, "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"}, "features": features,
        "data_path": _PATH.format(kind="data", camera="", ending="parquet"),
        "video_path": _PATH.format(kind="videos", camera="{video_key}/", ending="mp4"),
    }  # fmt: skip
    (folder / "meta/info.json").write_text(json.dumps(info))
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(("pick", "place"))]
    for name, lines in {"tasks": tasks, "episodes": episodes, "episodes_stats": statistics}.items():
        (folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _features() -> dict[str, Any]:
    kinds = {"next.reward": "float32", "next.done": "bool", "timestamp": "float32"}
    numbers = ("frame_index", "episode_index", "index", "task_index")
    return {
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        **{key: {"dtype": kind, "shape": [1], "names": None} for key, kind in kinds.items()},
        **{key: {"dtype": "int64", "shape": [1], "names": None} for key in numbers},
        **{
            key: {
                "dtype": "video", "shape": [*sides, 3], "names": ["height", "width", "channels"],
                "info": {"video.fps": FPS, "video.codec": "h264", "video.pix_fmt": "yuv420p"},
            }
            for key, sides in CAMERAS.items()
        },
    }  # fmt: skip


def _schema(rows: dict[str, npt.NDArray[Any]]) -> pa.Schema:
    types = {key: pa.from_numpy_dtype(values.dtype) for key, values in rows.items()}
    return pa.schema([(key, pa.list_(each) if rows[key].ndim > 1 else each) for key, each in types.items()])


def _statistics(values: npt.NDArray[Any], axis: Any) -> dict[str, Any]:
    found = {name: getattr(np, name)(values.astype(np.float64), axis=axis) for name in ("min", "max", "mean", "std")}
    # Those of a camera are [3, 1, 1].
    shape = (3, 1, 1) if values.ndim == 4 else (-1,)
    return {**{name: each.reshape(shape).tolist() for name, each in found.items()}, "count": [len(values)]}
