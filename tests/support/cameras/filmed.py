"""A small dataset with two cameras whose videos exist, attached by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from gear_data.video.encoding.encoder import open_encoder
from gear_data.video.indexing.demux import index_file
from gear_data.video.segments import VideoSegments
from tests.support.cameras.attached import attach_cameras

#: The cameras of `film`: all episodes in one file, and one file an episode.
FRONT, WRIST = "observations.images.front", "observations.images.wrist"
FPS = 10


@dataclass(frozen=True)
class Filmed:
    """A dataset, and camera -> the frames of each episode."""

    path: Path
    frames: dict[str, list[npt.NDArray[np.uint8]]]


def moving_bar(count: int, height: int = 48, width: int = 64) -> npt.NDArray[np.uint8]:
    """Returns frames [count, height, width, 3] of a gradient on which a bright bar moves."""
    frames = np.empty((count, height, width, 3), np.uint8)
    frames[:] = np.linspace(20, 120, width, dtype=np.uint8)[:, None]
    for number in range(count):
        frames[number, :, 3 * number % width :][:, :6] = (200, 40, 90)
    return frames


def write_video(path: Path, frames: npt.NDArray[np.uint8], codec: str = "libx264", **options: str) -> None:
    """Encodes frames into a file, at `FPS`."""
    encode_frames(path, frames, codec, FPS, "rgb24", "yuv420p", options)


def encode_frames(
    path: Path, frames: npt.NDArray[Any], codec: str, fps: int, form: str, pix_fmt: str, options: dict[str, str]
) -> None:
    """Encodes arrays of one pixel format into a file of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        open_encoder(stream.codec_context)
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format=form)))
        container.mux(stream.encode())


def decoded(path: Path, form: str = "rgb24") -> npt.NDArray[Any]:
    """Returns all frames of a file, decoded in sequence."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format=form) for frame in container.decode(video=0)])


def damage_a_frame(path: Path) -> int:
    """Flips one bit, so that FFmpeg decodes all frames but reports damage.

    Returns the number of the first damaged frame.
    """
    packets, content = index_file(path, path.name).packets, path.read_bytes()
    count = len(decoded(path))
    for position, size in zip(packets.position.tolist(), packets.size.tolist(), strict=True):
        for place in range(position + size // 2, position + size):
            flipped = bytearray(content)
            flipped[place] ^= 4
            path.write_bytes(flipped)
            try:
                with av.open(str(path)) as container:
                    damaged = [frame.is_corrupt for frame in container.decode(video=0)]
            except av.FFmpegError:
                continue
            if len(damaged) == count and any(damaged):
                return damaged.index(True)
    raise RuntimeError(f"FFmpeg reports no damage in {path}")


def key_frames(path: Path) -> list[int]:
    """Returns the numbers of the key frames of a file without B frames."""
    with av.open(str(path)) as container:
        return [i for i, packet in enumerate(container.demux(video=0)) if packet.is_keyframe]


def film(folder: Path, lengths: Sequence[int]) -> dict[str, list[npt.NDArray[np.uint8]]]:
    """Gives a dataset the cameras `FRONT` and `WRIST`.

    Args:
        folder: the dataset.
        lengths: steps of each episode.

    Returns:
        Camera -> the frames of each episode, decoded in sequence.
    """
    offsets = np.cumsum([0, *lengths])
    # B frames, and groups that do not begin where episodes do. A second of other frames comes before the episodes.
    names = ["videos/front.mp4", *(f"videos/wrist/{number}.mp4" for number in range(len(lengths)))]
    write_video(folder / names[0], moving_bar(FPS + int(offsets[-1])), g="7", bf="2")
    for number, length in enumerate(lengths):
        write_video(folder / names[1 + number], moving_bar(length, 32, 48)[:, ::-1], "mpeg4", g="4")
    episodes = np.arange(len(lengths))
    cameras = {
        FRONT: VideoSegments(0 * episodes, FPS + offsets[:-1]),
        WRIST: VideoSegments(1 + episodes, 0 * episodes),
    }
    attach_cameras(folder, [index_file(folder / name, name) for name in names], cameras)
    front = decoded(folder / names[0])[FPS:]
    return {
        FRONT: [front[first:last] for first, last in pairwise(offsets)],
        WRIST: [decoded(folder / name) for name in names[1:]],
    }
