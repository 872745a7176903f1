"""The videos of one camera in an export: `videos/KEY/chunk-000/file-000.mp4`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import ProgressBar, pluralize
from gear_data.dataset.cameras.stored_videos import StoredVideos
from gear_data.dataset.dataset import Dataset
from gear_data.errors import GearError
from gear_data.exports.lerobot.features import VideoFeature
from gear_data.exports.lerobot.videos.codecs import DEFAULT_CODEC, OPTIONS
from gear_data.exports.lerobot.videos.kept import KeptVideos, Way, copy_video, kept_videos
from gear_data.exports.lerobot.videos.packet_copier import PacketCopier
from gear_data.schema import DepthFormat
from gear_data.video.encoding.encoder import (
    DEPTH_CODEC,
    DEPTH_OPTIONS,
    DEPTH_PIXEL_FORMAT,
    PIXEL_FORMAT,
    VideoEncoder,
)

#: LeRobot's default limit of a video file in MB.
VIDEO_MB = 200
CHUNK_FILES = 1000
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
#: Frames that are read and encoded together.
_FRAMES_AT_ONCE = 32


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
    folder: Path, dataset: Dataset, feature: VideoFeature, fps: float, codec: str | None, bar: ProgressBar
) -> WrittenVideos:
    """Writes the videos of one camera.

    Args:
        folder: folder of the LeRobot dataset.
        dataset: dataset to export.
        feature: a camera, or a column of uint8 frames [H, W, 3].
        fps: steps per second.
        codec: encode all frames so. None: copy videos where it is possible, and encode the others as `DEFAULT_CODEC`.
            Depth is always copied where it is possible, and else encoded without loss.
        bar: progress, in frames.

    Raises:
        CorruptShardError: a video of the dataset is damaged.
        InvalidArgumentError, MissingExtraError: see `VideoEncoder`.
    """
    name = feature.spec.name
    depth = feature.spec.depth is not None
    codec, encoded = (None, DEPTH_CODEC) if depth else (codec, codec or DEFAULT_CODEC)
    if feature.spec.video is not None and codec is None:
        kept = kept_videos(dataset, name, fps)
    else:
        kept = KeptVideos((Way.ENCODE,) * dataset.num_episodes)
    files = _Files(folder, dataset, feature, fps, encoded)
    add = {Way.FILE: files.copy_file, Way.PACKETS: files.copy_packets, Way.ENCODE: files.encode}
    try:
        for position, way in enumerate(kept.ways):
            add[way](position, bar)
        files.finish()
    except BaseException:
        files.abort()
        raise
    note = _note(name, kept, encoded)
    return WrittenVideos(feature.name, files.info(), np.array(files.number), np.array(files.start), note)


def _note(camera: str, kept: KeptVideos, codec: str) -> str | None:
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
        #: The file that is being written, and its number.
        self._current: VideoEncoder | PacketCopier | None = None
        self._current_file = -1
        #: The first file of the dataset of which something was copied.
        self._kept: int | None = None

    def copy_file(self, position: int, bar: ProgressBar) -> None:
        """Adds an episode whose file is copied with its first episode."""
        videos, number, first, length = self._place(position)
        if number not in self._copied:
            self._copied[number], path = self._next_file()
            copy_video(videos, number, path)
        self.number.append(self._copied[number])
        self.start.append(float(videos.index.file(number).times[first]))
        bar.update(length)

    def copy_packets(self, position: int, bar: ProgressBar) -> None:
        """Adds an episode whose packets are copied."""
        videos, number, first, length = self._place(position)
        packet = int(videos.index.file(number).frames[first])
        size = int(videos.index.file(number).packets.size[packet : packet + length].sum(dtype=np.int64))
        current = self._current
        if not isinstance(current, PacketCopier) or not current.takes(number) or current.bytes + size > VIDEO_MB << 20:
            self.finish()
            self._current_file, path = self._next_file()
            current = self._current = PacketCopier(path, videos, number, self._fps)
        self._begin_episode(current)
        current.add(number, packet, packet + length)
        bar.update(length)

    def encode(self, position: int, bar: ProgressBar) -> None:
        """Adds an episode whose frames are encoded."""
        length = int(self._dataset.lengths[position])
        current = self._current
        # The encoder holds frames back, so that the size is an estimate.
        if (
            not isinstance(current, VideoEncoder)
            or current.bytes + current.bytes * length // max(1, current.frames) > VIDEO_MB << 20
        ):
            self.finish()
            self._current_file, path = self._next_file()
            height, width, _ = self._feature.spec.shape
            options = OPTIONS if self._feature.spec.depth is None else DEPTH_OPTIONS
            current = self._current = VideoEncoder(path, self._codec, self._fps, height, width, options)
        self._begin_episode(current)
        for first in range(0, length, _FRAMES_AT_ONCE):
            part = self._frames(position, np.arange(first, min(length, first + _FRAMES_AT_ONCE)))
            current.add(part, begins=first == 0)
            bar.update(len(part))

    def _frames(self, position: int, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Returns frames of an episode; of depth the numbers, uint16 [n, H, W]."""
        spec = self._feature.spec
        if spec.depth is None:
            frames: npt.NDArray[Any] = self._dataset[position][spec.name][steps[0] : steps[-1] + 1]
            return frames
        rows = self._dataset.view.rows
        episode = position if rows is None else int(rows[position])
        return self._dataset.store.videos.depth_numbers(spec, np.full(len(steps), episode), steps)[..., 0]

    def _begin_episode(self, current: VideoEncoder | PacketCopier) -> None:
        self.number.append(self._current_file)
        self.start.append(current.frames / self._fps)

    def _place(self, position: int) -> tuple[StoredVideos, int, int, int]:
        """Returns the videos, and an episode's file, first frame and length.

        The episode is copied.
        """
        videos, rows = self._dataset.store.videos, self._dataset.view.rows
        episode = position if rows is None else int(rows[position])
        segments = videos.segments[self._feature.spec.name]
        number = int(segments.file[episode])
        self._kept = number if self._kept is None else self._kept
        return videos, number, int(segments.first_frame[episode]), int(self._dataset.lengths[position])

    def _next_file(self) -> tuple[int, Path]:
        """Returns number and path of a new file."""
        number = self._files
        self._files += 1
        place = {"chunk_index": number // CHUNK_FILES, "file_index": number % CHUNK_FILES}
        return number, self._folder / VIDEO_PATH.format(video_key=self._feature.name, **place)

    def finish(self) -> None:
        """Closes the current file."""
        current, self._current = self._current, None
        if current is not None:
            current.finish()

    def abort(self) -> None:
        """Closes the current file after an error."""
        with suppress(GearError, OSError):  # the first error says more
            self.finish()

    def info(self) -> dict[str, Any]:
        """Returns LeRobot's description of the videos.

        It describes the first kept file if there is one.
        """
        depth = self._feature.spec.depth
        codec, pixel_format = self._codec, PIXEL_FORMAT if depth is None else DEPTH_PIXEL_FORMAT
        if self._kept is not None:
            video = self._dataset.store.videos.index.file(self._kept)
            codec, pixel_format = video.codec, video.pixel_format
        height, width, channels = self._feature.spec.shape
        return {
            "video.height": height,
            "video.width": width,
            "video.codec": codec,
            "video.pix_fmt": pixel_format,
            **({"video.is_depth_map": False} if depth is None else _depth_info(depth)),
            "video.fps": self._fps,
            "video.channels": channels,
            "has_audio": False,
        }


def _depth_info(depth: DepthFormat) -> dict[str, Any]:
    """Returns LeRobot's description of depth. `depth_unit` is the unit of the statistics."""
    return {
        "is_depth_map": True,
        "depth_unit": depth.unit,
        "video.depth_min": depth.minimum,
        "video.depth_max": depth.maximum,
        "video.shift": depth.shift,
        "video.use_log": depth.logarithmic,
    }
