"""Videos that an export copies without encoding."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.dataset.cameras.stored_videos import StoredVideos
from gear_data.dataset.dataset import Dataset
from gear_data.errors import CorruptShardError
from gear_data.video.file_index import KEY, VideoFile

#: LeRobot's tolerance when it looks for the frame of a time, in seconds.
TOLERANCE = 1e-4
_COPY_BYTES = 32 << 20


class Way(enum.Enum):
    """How the frames of an episode come into an export."""

    FILE = "its whole file is copied"
    PACKETS = "its packets are copied"
    ENCODE = "its frames are encoded"


@dataclass(frozen=True)
class KeptVideos:
    """Videos of one camera that an export keeps.

    Attributes:
        ways: the way of each episode.
        shared: episodes that are encoded, whose file has episodes that are not exported.
        other_times: other episodes that are encoded: the frames of a file are not at multiples of 1 / fps.
    """

    ways: tuple[Way, ...]
    shared: int = 0
    other_times: int = 0


def kept_videos(dataset: Dataset, camera: str, fps: float) -> KeptVideos:
    """Returns the videos of a camera that can be copied.

    A file is copied if it holds only episodes of the view, with frames at the times that LeRobot computes. The packets
    of another episode are copied if they are in the order of the frames, and the first is a key frame.

    Args:
        dataset: dataset or view to export.
        camera: the camera.
        fps: steps per second.
    """
    store = dataset.store
    segments = store.videos.segments[camera]
    rows = dataset.view.rows
    ids = np.arange(len(segments)) if rows is None else rows
    files, first, lengths = segments.file[ids], segments.first_frame[ids], store.lengths[ids]
    count = len(store.videos.index)
    whole = np.bincount(segments.file, minlength=count) == np.bincount(files, minlength=count)
    ways = np.empty(len(ids), object)
    store.videos.index.load(files)
    for number in np.unique(files).tolist():
        video, inside = store.videos.index.file(number), np.flatnonzero(files == number)
        spans = list(zip(first[inside].tolist(), lengths[inside].tolist(), strict=True))
        if whole[number] and all(_at_times(video, begin, length, fps) for begin, length in spans):
            ways[inside] = Way.FILE
        else:
            ways[inside] = [Way.PACKETS if _in_order(video, *span) else Way.ENCODE for span in spans]
    encoded = ways == Way.ENCODE
    return KeptVideos(tuple(ways), int((encoded & ~whole[files]).sum()), int((encoded & whole[files]).sum()))


def _in_order(video: VideoFile, first: int, length: int) -> bool:
    """Returns whether frames are in the order of their packets, from a key frame on."""
    packets = video.frames[first : first + length]
    return bool(video.packets.flags[packets[0]] & KEY) and bool((np.diff(packets) == 1).all())


def _at_times(video: VideoFile, first: int, length: int, fps: float) -> bool:
    """Returns whether frame `first` + t is t / fps after frame `first`, for all t."""
    times: npt.NDArray[np.float64] = video.times[first : first + length]
    return bool(np.abs(times - times[0] - np.arange(length) / fps).max() < TOLERANCE)


def copy_video(videos: StoredVideos, number: int, path: Path) -> None:
    """Copies a video file, and compares it with its checksum, if it has one.

    Raises:
        CorruptShardError: the file is damaged.
    """
    video = videos.index.file(number)
    digest = xxhash.xxh3_128()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        for first in range(0, video.size, _COPY_BYTES):
            (part,) = videos.packets.read([(number, first, min(video.size, first + _COPY_BYTES))])
            digest.update(part)
            out.write(part)
    found = f"xxh3-128:{digest.hexdigest()}"
    if video.was_read and found != video.checksum:
        raise CorruptShardError(
            f"its checksum is {found}, the dataset's index says {video.checksum}",
            file=video.file,
            hint="run 'gear-data verify', then restore the file or convert again",
        )
