"""Episodes of encoded images, for tests of several packages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Pixels = npt.NDArray[np.uint8]

IMAGE_FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
IMAGE_COLUMN = "observations.image"


def encode_image(pixels: Pixels, kind: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    """Encodes [H, W, C]. C = 1 is grey."""
    file = io.BytesIO()
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    (image if mode is None else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def make_images(count: int = 12, shape: tuple[int, int, int] = (4, 6, 3), seed: int = 0) -> list[Pixels]:
    """Returns episodes of 1 to 7 steps, uint8 [T, H, W, C]."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (rng.integers(1, 8), *shape), np.uint8) for _ in range(count)]


def encode_episodes(episodes: Sequence[Pixels], **options: Any) -> list[list[bytes]]:
    """Encodes every image of the episodes."""
    return [[encode_image(image, **options) for image in episode] for episode in episodes]


def rewards_of(frames: Sequence[Any]) -> pa.Array:
    """Returns rewards for episodes: i in each step of episode i."""
    return pa.array([[float(i)] * len(row) for i, row in enumerate(frames)], pa.list_(pa.float32()))


def write_episode_images(path: Path, frames: Sequence[Sequence[bytes]], *, group: int = 5) -> Path:
    """Writes a Parquet file with one row per episode."""
    files = [[{"bytes": frame, "path": None} for frame in row] for row in frames]
    table = pa.table({"rewards": rewards_of(frames), IMAGE_COLUMN: pa.array(files, pa.list_(IMAGE_FILE))})
    pq.write_table(table, path, row_group_size=group)
    return path


def cut_image(image: bytes) -> bytes:
    """Cuts off the end of an encoded image."""
    return image[:-30]
