"""The videos of one camera in an export: `videos/KEY/chunk-000/file-000.mp4`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import pluralize
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.internals import store_of
from gear_data.exports.lerobot.features import VideoFeature
from gear_data.exports.lerobot.videos.encoder import DEFAULT_CODEC, PIXEL_FORMAT, VideoEncoder
from gear_data.exports.lerobot.videos.kept_files import KeptFiles, copy_video, kept_files
from gear_data.exports.metadata import episode_id

#: LeRobot's default limit of a video file in MB.
VIDEO_MB = 200
CHUNK_FILES = 1000
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
#: Frames that are read and encoded together.
_FRAMES_AT_ONCE = 32
_NO_FILES = KeptFiles(frozenset(), 0, 0)


@dataclass(frozen=True)
class WrittenVideos:
    """The videos of one camera.

    Attributes:
        key: name of the feature.
        info: entry `info` of the feature in `meta/info.json`.
        file: int64 [episodes], number of each episode's file.
        start: float64 [episodes], seconds from the file's beginning to each episode.
        note: why some files were not copied; None if there is nothing to say.
    """

    key: str
    info: dict[str, Any]
    file: npt.NDArray[np.int64]
    start: npt.NDArray[np.float64]
    note: str | None


def write_videos(
    folder: Path, dataset: Dataset, feature: VideoFeature, fps: float, codec: str | None, bar: Any
) -> WrittenVideos:
    """Writes the videos of one camera.

    Args:
        folder: folder of the LeRobot dataset.
        dataset: dataset to export.
        feature: a camera, or a column of uint8 frames [H, W, 3].
        fps: steps per second.
        codec: encode all frames so. None: copy files where it is possible, and encode the others as `DEFAULT_CODEC`.
        bar: progress, in frames.

    Raises:
        CorruptShardError: a video of the dataset is damaged.
        InvalidArgumentError, MissingExtraError: see `VideoEncoder`.
    """
    name = feature.spec.name
    is_camera = feature.spec.video is not None
    kept = kept_files(dataset, name, fps) if is_camera and codec is None else _NO_FILES
    files = _Files(folder, dataset, feature, fps, codec or DEFAULT_CODEC)
    try:
        for position in range(dataset.num_episodes):
            number = _source_file(dataset, name, position) if is_camera else -1
            if number in kept.numbers:
                files.copy(position, number)
                bar.update(int(dataset.lengths[position]))
            else:
                files.encode(position, bar)
        files.finish()
    except BaseException:
        files.abort()
        raise
    note = _note(name, kept, codec or DEFAULT_CODEC)
    return WrittenVideos(feature.name, files.info(), np.array(files.number), np.array(files.start), note)


def _source_file(dataset: Dataset, camera: str, position: int) -> int:
    return int(store_of(dataset).videos.segments[camera].file[episode_id(dataset, position)])


def _note(camera: str, kept: KeptFiles, codec: str) -> str | None:
    reasons = []
    if kept.shared:
        reasons.append(f"{pluralize(kept.shared, 'episode')}, whose files have episodes that are not exported")
    if kept.other_times:
        reasons.append(f"{pluralize(kept.other_times, 'episode')}, whose frames have other times than fps says")
    return f"{camera}: encoded again as {codec}: {'; '.join(reasons)}" if reasons else None


class _Files:
    """The files that are written.

    Attributes:
        number: number of the file of each episode so far.
        start: first time of each episode so far, in seconds.
    """

    def __init__(self, folder: Path, dataset: Dataset, feature: VideoFeature, fps: float, codec: str) -> None:
        self.number: list[int] = []
        self.start: list[float] = []
        self._folder, self._dataset, self._feature, self._fps, self._codec = folder, dataset, feature, fps, codec
        self._files = 0
        self._copied: dict[int, int] = {}
        self._encoder: VideoEncoder | None = None
        self._encoder_file = -1

    def copy(self, position: int, number: int) -> None:
        """Adds an episode whose file is copied with its first episode."""
        store = store_of(self._dataset)
        if number not in self._copied:
            self._copied[number], path = self._next_file()
            copy_video(store.videos, number, path)
        first = store.videos.segments[self._feature.spec.name].first_frame[episode_id(self._dataset, position)]
        self.number.append(self._copied[number])
        self.start.append(float(store.videos.index.file(number).times[first]))

    def encode(self, position: int, bar: Any) -> None:
        """Adds an episode whose frames are encoded."""
        length = int(self._dataset.lengths[position])
        encoder = self._encoder_for(length)
        self.number.append(self._encoder_file)
        self.start.append(encoder.frames / self._fps)
        frames = self._dataset[position][self._feature.spec.name]
        for first in range(0, length, _FRAMES_AT_ONCE):
            part = frames[first : first + _FRAMES_AT_ONCE]
            encoder.add(part, begins=first == 0)
            bar.update(len(part))

    def _encoder_for(self, frames: int) -> VideoEncoder:
        """Returns the encoder of the current file.

        The file is a new one if the last one would become too large.
        """
        current = self._encoder
        if current is not None:
            size = current.bytes
            if size + size * frames // max(1, current.frames) > VIDEO_MB << 20:
                self.finish()
        if self._encoder is None:
            self._encoder_file, path = self._next_file()
            self._encoder = VideoEncoder(path, self._codec, self._fps, *self._feature.spec.shape[:2])
        return self._encoder

    def _next_file(self) -> tuple[int, Path]:
        """Returns number and path of a new file."""
        number = self._files
        self._files += 1
        place = {"chunk_index": number // CHUNK_FILES, "file_index": number % CHUNK_FILES}
        return number, self._folder / VIDEO_PATH.format(video_key=self._feature.name, **place)

    def finish(self) -> None:
        """Closes the current file."""
        if self._encoder is not None:
            encoder, self._encoder = self._encoder, None
            encoder.finish()

    def abort(self) -> None:
        """Closes the current file after an error."""
        if self._encoder is not None:
            self._encoder.abort()

    def info(self) -> dict[str, Any]:
        """Returns LeRobot's description of the videos.

        It describes the first copied file if there is one.
        """
        codec, pixel_format = self._codec, PIXEL_FORMAT
        if self._copied:
            video = store_of(self._dataset).videos.index.file(next(iter(self._copied)))
            codec, pixel_format = video.codec, video.pixel_format
        height, width, channels = self._feature.spec.shape
        return {
            "video.height": height,
            "video.width": width,
            "video.codec": codec,
            "video.pix_fmt": pixel_format,
            "video.is_depth_map": False,
            "video.fps": self._fps,
            "video.channels": channels,
            "has_audio": False,
        }
