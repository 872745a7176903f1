"""LeRobot v3.0 datasets with a depth video, written as LeRobot 0.6 writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.cameras.filmed import decoded, encode_frames

KEY, DEPTH = "observation.images.depth", "observations.images.depth"
FPS, SIDES = 30, (48, 70)
#: What LeRobot 0.6 writes below `info`.
QUANTISED: dict[str, Any] = {
    "is_depth_map": True,
    "depth_unit": "mm",
    "video.pix_fmt": "gray12le",
    "video.codec": "hevc",
    "video.depth_min": 0.01,
    "video.depth_max": 10.0,
    "video.shift": 3.5,
    "video.use_log": True,
}


def random_numbers(count: int, seed: int = 0) -> npt.NDArray[np.uint16]:
    """Returns frames of 12-bit numbers, [count, H, W], with the lowest and the highest number."""
    numbers = np.random.default_rng(seed).integers(0, 4096, (count, *SIDES), np.uint16)
    numbers[:, 0, :2] = 0, 4095
    return numbers


def encode_numbers(path: Path, numbers: npt.NDArray[np.uint16], **options: str) -> None:
    """Encodes numbers into a file without loss, as LeRobot's default does."""
    own = {"g": "2", "x265-params": "lossless=1:log-level=none:pools=1", **options}
    encode_frames(path, numbers, "libx265", FPS, "gray12le", "gray12le", own)


def decode_numbers(path: Path) -> npt.NDArray[np.uint16]:
    """Returns the numbers of a file as LeRobot decodes them, [n, H, W]."""
    return decoded(path, "gray12le")


def write_depth(
    folder: Path, lengths: Sequence[int] = (5, 8, 4), seed: int = 0, encoding: dict[str, str] | None = None, **info: Any
) -> tuple[Path, list[npt.NDArray[np.uint16]]]:
    """Writes a dataset whose episodes are in one video of depth.

    Args:
        folder: a new folder.
        lengths: of the episodes.
        seed: of the numbers.
        encoding: options of the encoder.
        info: keys of `info` in place of those of `QUANTISED`; None leaves a key out.

    Returns:
        The folder, and the numbers of each episode.
    """
    total = sum(lengths)
    numbers = random_numbers(total, seed)
    encode_numbers(folder / f"videos/{KEY}/chunk-000/file-000.mp4", numbers, **(encoding or {}))
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    rows = {
        "observation.state": pa.FixedSizeListArray.from_arrays(np.arange(2 * total, dtype=np.float32), 2),
        "action": np.arange(total, dtype=np.float32),
        "timestamp": (step / FPS).astype(np.float32),
        "frame_index": step,
        "episode_index": episode,
        "index": np.arange(total),
        "task_index": np.zeros(total, np.int64),
    }
    _write(folder / "data/chunk-000/file-000.parquet", pa.table(rows))
    first = np.concatenate([[0], np.cumsum(lengths)])
    listed = [
        {
            "episode_index": number, "length": length, "tasks": ["reach"],
            "data/chunk_index": 0, "data/file_index": 0,
            "dataset_from_index": int(first[number]), "dataset_to_index": int(first[number + 1]),
            f"videos/{KEY}/chunk_index": 0, f"videos/{KEY}/file_index": 0,
            f"videos/{KEY}/from_timestamp": first[number] / FPS, f"videos/{KEY}/to_timestamp": first[number + 1] / FPS,
        }
        for number, length in enumerate(lengths)
    ]  # fmt: skip
    _write(folder / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(listed))
    tasks = pd.DataFrame({"task_index": [0]}, index=pd.Index(["reach"], name="task"))
    _write(folder / "meta/tasks.parquet", pa.Table.from_pandas(tasks))
    details = {name: value for name, value in {**QUANTISED, **info}.items() if value is not None}
    camera = {"dtype": "video", "shape": [*SIDES, 1], "names": ["height", "width", "channels"], "info": details}
    dtypes = {name: "float32" if name in ("observation.state", "action", "timestamp") else "int64" for name in rows}
    shapes = {"observation.state": [2]}
    features: dict[str, Any] = {
        name: {"dtype": dtype, "shape": shapes.get(name, [1])} for name, dtype in dtypes.items()
    }
    text = {
        "codebase_version": "v3.0", "fps": FPS, "total_episodes": len(lengths), "total_frames": total, "total_tasks": 1,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {**features, KEY: camera},
    }  # fmt: skip
    (folder / "meta/info.json").write_text(json.dumps(text))
    return folder, [numbers[first[i] : first[i + 1]] for i in range(len(lengths))]


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
