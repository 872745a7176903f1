"""EpisodeVideo: the video of one open episode and camera."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.recording.cameras.camera import Camera
from gear_data.recording.cameras.encoding_threads import EncodingThreads
from gear_data.recording.cameras.kept_file import KeptFile
from gear_data.storage.atomic import checksum
from gear_data.storage.journal.record import RecordedVideo
from gear_data.storage.journal.videos import remove_videos
from gear_data.video.encoding.encoder import VideoEncoder

Frame = npt.NDArray[np.uint8]


class EpisodeVideo:
    """The video of one open episode and camera.

    Its frames are encoded by one of the threads, in order.

    Args:
        folder: the folder of the journals.
        file: the new file, relative to the folder.
        camera: how frames are encoded.
        height, width: of the frames.
        threads: encode.

    Attributes:
        frames: number of frames so far, also of those that wait.

    Raises:
        InvalidArgumentError: the encoder does not take frames of this size, or an option.
        MissingExtraError: PyAV is not installed.
        StorageFullError, UnwritableError: the file cannot be made.
    """

    def __init__(
        self, folder: Path, file: str, camera: Camera, height: int, width: int, threads: EncodingThreads
    ) -> None:
        self.frames = 0
        self._folder, self._path, self._name = folder, folder / file, file
        self._dropped = False
        self._error: BaseException | None = None
        self._is_encoded = False
        self._done: threading.Event | None = None
        self._result: RecordedVideo | None = None
        # The file is last: one that stays after an error would be in the way of the next try.
        self._threads, self._thread = threads, threads.choose()
        self._file = KeptFile(self._path)
        try:
            self._encoder = VideoEncoder(self._file, camera.codec, camera.fps, height, width, camera.encoder_options)
        except BaseException:
            self._file.close()
            remove_videos(folder, [self._path])
            raise

    def add(self, frame: Frame) -> None:
        """Hands the next frame over, which must not change. Its bytes are reserved in the threads."""
        self._threads.submit(self._thread, lambda: self._encode(frame))
        self.frames += 1

    def check(self) -> None:
        """Raises the error at which encoding stopped.

        Raises:
            InvalidArgumentError: the episode was ended before, and has no further frames.
        """
        if self._error is not None:
            raise self._error
        if self._is_encoded or self._done is not None:
            raise InvalidArgumentError(
                "the video of the open episode is complete", hint="call end_episode again, or discard the episode"
            )

    def begin_finish(self, *, sync: bool) -> None:
        """Begins to complete the file.

        Args:
            sync: whether the disk must have the file.
        """
        if self._done is None and self._result is None:
            done = threading.Event()
            self._threads.submit(self._thread, lambda: self._finish(sync, done))
            self._done = done  # after it was submitted: `finish` waits for it

    def finish(self, *, sync: bool) -> RecordedVideo:
        """Waits until the file is complete.

        Raises:
            StorageFullError, UnwritableError: the disk does not take it. `finish` can be called again.
            GearError: the frames could not be encoded.
        """
        self.begin_finish(sync=sync)
        if self._done is not None:
            self._done.wait()
            self._done = None
        if self._result is None:
            error, self._error = self._error, None if self._is_encoded else self._error
            raise error or InvalidArgumentError("the video was discarded")
        return self._result

    def discard(self) -> None:
        """Removes the file. Frames that wait are not encoded."""
        self._dropped = True
        done = threading.Event()
        self._threads.submit(self._thread, lambda: self._remove(done))
        done.wait()

    def _encode(self, frame: Frame) -> None:
        try:
            if not self._dropped and self._error is None:
                self._encoder.add(frame[None], begins=False)
        except Exception as error:  # raised by the next step
            self._error = error
        finally:
            self._threads.release(frame.nbytes)

    def _finish(self, sync: bool, done: threading.Event) -> None:
        try:
            if self._error is None and self._result is None:
                if not self._is_encoded:
                    self._encoder.finish()
                    self._is_encoded = True
                self._file.save(sync=sync)
                self._file.close()
                self._result = RecordedVideo(self._name, self._path.stat().st_size, checksum(self._path))
        except Exception as error:  # raised by `finish`
            self._error = error
        finally:
            done.set()

    def _remove(self, done: threading.Event) -> None:
        try:
            if not self._is_encoded:
                self._encoder.abort()
            self._file.close()
            remove_videos(self._folder, [self._path])
        finally:
            done.set()
