"""Video files that an export copies without encoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.dataset.cameras.stored_videos import StoredVideos
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.internals import store_of
from gear_data.errors import CorruptShardError
from gear_data.video.file_index import VideoFile

#: LeRobot's tolerance when it looks for the frame of a time, in seconds.
_TOLERANCE = 1e-4
_COPY_BYTES = 32 << 20


@dataclass(frozen=True)
class KeptFiles:
    """Files of one camera that the export copies.

    Attributes:
        numbers: the files, by number in the index.
        shared: episodes of the view whose file has episodes that are not exported.
        other_times: episodes of the view whose frames are not at multiples of 1 / fps.
    """

    numbers: frozenset[int]
    shared: int
    other_times: int


def kept_files(dataset: Dataset, camera: str, fps: float) -> KeptFiles:
    """Returns the files of a camera that can be copied.

    They hold only episodes of the view, and frames at the times that LeRobot computes.

    Args:
        dataset: dataset or view to export.
        camera: the camera.
        fps: steps per second.
    """
    store = store_of(dataset)
    segments = store.videos.segments[camera]
    ids = np.arange(len(segments)) if dataset.episode_ids is None else dataset.episode_ids
    files = segments.file[ids]
    count = len(store.videos.index)
    whole = np.bincount(segments.file, minlength=count) == np.bincount(files, minlength=count)
    kept, other_times = set(), 0
    for number in np.unique(files[whole[files]]).tolist():
        episodes = ids[files == number]
        spans = zip(segments.first_frame[episodes].tolist(), store.lengths[episodes].tolist(), strict=True)
        if all(_at_times(store.videos.index.file(number), first, length, fps) for first, length in spans):
            kept.add(number)
        else:
            other_times += len(episodes)
    return KeptFiles(frozenset(kept), int((~whole[files]).sum()), other_times)


def _at_times(video: VideoFile, first: int, length: int, fps: float) -> bool:
    """Returns whether frame `first` + t is t / fps after frame `first`, for all t."""
    times: npt.NDArray[np.float64] = video.times[first : first + length]
    return bool(np.abs(times - times[0] - np.arange(length) / fps).max() < _TOLERANCE)


def copy_video(videos: StoredVideos, number: int, path: Path) -> None:
    """Copies a video file, and compares it with its checksum.

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
    if found != video.checksum:
        raise CorruptShardError(
            f"its checksum is {found}, the dataset's index says {video.checksum}",
            file=video.file,
            hint="run 'gear-data verify', then restore the file or convert again",
        )
