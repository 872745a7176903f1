"""CameraRecorder: the cameras of a Writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.recording.cameras.camera import Camera
from gear_data.recording.cameras.encoding_threads import EncodingThreads
from gear_data.recording.cameras.episode_video import EpisodeVideo
from gear_data.recording.step_columns import as_array, check_names
from gear_data.schema import ColumnSpec, VideoFormat, video_column
from gear_data.storage.journal.record import RecordedVideo
from gear_data.storage.journal.videos import next_number, video_file

Frames = npt.NDArray[np.uint8]


class CameraRecorder:
    """Encodes the frames of open episodes: one file for each episode and camera.

    Slots are those of `OpenEpisodes`. Not thread-safe.

    Args:
        cameras: column -> how its frames are encoded.

    Attributes:
        columns: a `gear_data.schema.video_column` for each camera, once `begin` was called.

    Raises:
        InvalidArgumentError: `cameras` is no mapping of names to `Camera`.
    """

    def __init__(self, cameras: Mapping[str, Camera]) -> None:
        for name, camera in cameras.items():
            if not isinstance(name, str) or not isinstance(camera, Camera):
                raise InvalidArgumentError(
                    f"cameras has {name!r:.80}: {camera!r:.80}",
                    hint="map the name of a column to gear_data.Camera(...)",
                )
        self.columns: tuple[ColumnSpec, ...] = ()
        self._cameras = dict(cameras)
        self._videos: dict[int, dict[str, EpisodeVideo]] = {}
        self._threads = EncodingThreads()
        self._folder = Path()
        #: Slot -> number of its episode's files, and the next number.
        self._numbers: dict[int, int] = {}
        self._next = 0

    def split(self, flat: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the other values of a step, and the frames."""
        if not self._cameras:
            return flat, {}
        rest = {name: value for name, value in flat.items() if name not in self._cameras}
        return rest, {name: value for name, value in flat.items() if name in self._cameras}

    def declare(self, columns: Sequence[ColumnSpec]) -> tuple[ColumnSpec, ...]:
        """Takes the sizes of frames from declared columns.

        Returns:
            The columns that are not cameras.

        Raises:
            InvalidArgumentError: a declared column is the video of a dataset, or a camera is not declared.
            UnsupportedColumnError: a camera is not declared as frames.
        """
        for each in columns:
            if each.video is not None and each.name not in self._cameras:
                raise InvalidArgumentError(
                    "schema has it as a camera", column=each.name, hint="give cameras={name: gear_data.Camera(...)}"
                )
        found = {each.name: each for each in columns if each.name in self._cameras}
        check_names(found, self._cameras, "schema")
        self.columns = tuple(self._column(name, found[name].dtype, found[name].shape) for name in self._cameras)
        return tuple(each for each in columns if each.name not in self._cameras)

    def begin(self, frames: Mapping[str, Any], folder: Path | None) -> None:
        """Begins to record.

        Args:
            frames: column -> the first frame.
            folder: the folder of the journals; None: the episodes are recorded elsewhere.

        Raises:
            InvalidArgumentError: a camera has no frame, or `folder` is None.
            UnsupportedColumnError: a camera has no frames of uint8 [H, W, 3].
        """
        if not self._cameras:
            return
        check_names(frames, self._cameras, "the first step")
        if folder is None:
            raise InvalidArgumentError(
                "cameras need a Writer of a folder on this machine", hint="record here, or leave cameras out"
            )
        if not self.columns:
            arrays = {name: as_array(frames[name], None, name, "the first step") for name in self._cameras}
            self.columns = tuple(self._column(name, each.dtype.name, each.shape) for name, each in arrays.items())
        self._folder, self._next = folder, next_number(folder)

    def checked(self, frames: Mapping[str, Any], rows: int | None, where: str) -> dict[str, Frames]:
        """Returns the frames of a step as uint8 [n, H, W, 3].

        Args:
            frames: column -> frame, or n frames.
            rows: n; None: `frames` has one frame, without an axis.
            where: the step, for errors.

        Raises:
            InvalidArgumentError: a frame is missing, or has another dtype or size.
        """
        check_names(frames, self._cameras, where)
        found = {}
        for column in self.columns:
            array = as_array(frames[column.name], None, column.name, where)
            shape = column.shape if rows is None else (rows, *column.shape)
            if array.dtype != np.uint8 or array.shape != shape:
                raise InvalidArgumentError(
                    f"{where} has {array.dtype} {list(array.shape)}, and the camera has uint8 {list(shape)}",
                    column=column.name,
                )
            found[column.name] = array[None] if rows is None else array
        return found

    def append(self, slots: Sequence[int], lengths: Sequence[int], frames: Mapping[str, Frames]) -> None:
        """Appends a frame of each camera to the episode of each slot. Waits while too many frames wait.

        Args:
            slots: n slots.
            lengths: steps of their open episodes. Frames of a step that was not recorded are used again.
            frames: column -> uint8 [n, H, W, 3]. They may change after the call.

        Raises:
            GearError: an encoder cannot be opened, or has failed. No frame was taken then. See `EpisodeVideo`.
        """
        if not frames:
            return
        for slot in slots:
            for video in self._videos_of(slot).values():
                video.check()
        parts = [
            (self._videos[slot][name], row, values)
            for name, values in frames.items()
            for row, slot in enumerate(slots)
            if self._videos[slot][name].frames == lengths[row]
        ]
        left = sum(values[row].nbytes for _, row, values in parts)
        self._threads.reserve(left)
        try:
            copies = [(video, values[row].copy()) for video, row, values in parts]
            for video, frame in copies:
                video.add(frame)
                left -= frame.nbytes
        except BaseException:
            self._threads.release(left)  # a thread releases those that it got
            raise

    def begin_finish(self, slots: Sequence[int], *, sync: bool) -> None:
        """Begins to complete the videos of slots. `finish` then waits less."""
        for slot in slots:
            for video in self._videos.get(slot, {}).values():
                video.begin_finish(sync=sync)

    def finish(self, slot: int, *, sync: bool) -> dict[str, RecordedVideo]:
        """Completes the videos of a slot's episode. Returns them by camera.

        Args:
            slot: the slot.
            sync: whether the disk must have them.

        Raises:
            StorageFullError, UnwritableError: the disk does not take them. `finish` can be called again.
            GearError: an encoder has failed. The episode can only be discarded.
        """
        self.begin_finish([slot], sync=sync)
        return {name: video.finish(sync=sync) for name, video in self._videos.get(slot, {}).items()}

    def clear(self, slot: int) -> None:
        """Forgets the videos of an episode that was recorded."""
        self._videos.pop(slot, None)

    def discard(self, slot: int) -> None:
        """Removes the videos of an open episode."""
        for video in self._videos.pop(slot, {}).values():
            video.discard()

    def close(self) -> None:
        """Removes the videos of open episodes, and ends the threads."""
        for slot in [*self._videos]:
            self.discard(slot)
        self._threads.close()

    def _videos_of(self, slot: int) -> dict[str, EpisodeVideo]:
        """Returns the videos of a slot. The first step of an episode opens them."""
        if slot not in self._videos:
            self._numbers[slot] = self._next
            self._next += 1
            self._videos[slot] = {}
        videos = self._videos[slot]
        for column in self.columns:
            if column.name not in videos:
                file = video_file(column.name, self._numbers[slot])
                height, width, _ = column.shape
                videos[column.name] = EpisodeVideo(
                    self._folder, file, self._cameras[column.name], height, width, self._threads
                )
        return videos

    def _column(self, name: str, dtype: str, shape: Sequence[int]) -> ColumnSpec:
        if dtype != "uint8" or len(shape) != 3 or shape[2] != 3 or min(shape) < 1:
            raise UnsupportedColumnError(
                f"a camera needs frames of uint8 [height, width, 3], not {dtype} {list(shape)}", column=name
            )
        height, width, channels = shape
        return video_column(name, VideoFormat(height, width, channels, float(self._cameras[name].fps)))
