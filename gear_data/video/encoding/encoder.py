"""VideoEncoder: frames to an MP4 file."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.errors import InvalidArgumentError

#: Name of a codec -> FFmpeg's encoder.
ENCODERS = {"av1": "libsvtav1", "h264": "libx264", "mpeg4": "mpeg4"}
PIXEL_FORMAT = "yuv420p"
#: Codec, encoder, pixel format and options of depth, which LeRobot encodes without loss.
DEPTH_CODEC, _DEPTH_ENCODER, DEPTH_PIXEL_FORMAT = "hevc", "libx265", "gray12le"
DEPTH_OPTIONS = {"g": "2", "forced-idr": "1", "x265-params": "lossless=1:log-level=error"}
#: A folder for each thread of this process.
_THREADS = Path("/proc/self/task")


class VideoEncoder:
    """Encodes frames into one MP4 file. Every episode begins with a key frame.

    Args:
        file: the path of the file, or a file that is open for writing and can seek.
        codec: a name of `ENCODERS`; or `DEPTH_CODEC` for the numbers of depth.
        fps: frames per second.
        height, width: of the frames.
        options: of FFmpeg's encoder.

    Attributes:
        frames: number of frames so far.

    Raises:
        InvalidArgumentError: the encoder does not take frames of this size, or an option.
        MissingExtraError: PyAV is not installed.
    """

    def __init__(
        self, file: Path | io.RawIOBase, codec: str, fps: float, height: int, width: int, options: Mapping[str, str]
    ) -> None:
        if codec == "h264" and (height % 2 or width % 2):
            raise InvalidArgumentError(
                f"H.264 cannot encode frames of {height} x {width}: height and width must be even",
                hint="use the codec av1",
            )
        av = import_extra("av", "video")
        # SVT-AV1 writes its settings to standard error. 1: errors only.
        os.environ.setdefault("SVT_LOG", "1")
        self.frames = 0
        self._bytes = 0
        self._codec = codec
        self._av = av
        if isinstance(file, Path):
            file.parent.mkdir(parents=True, exist_ok=True)
        self._container: Any = av.open(str(file) if isinstance(file, Path) else file, "w", format="mp4")
        try:
            self._stream = self._container.add_stream(
                ENCODERS.get(codec, _DEPTH_ENCODER), Fraction(fps).limit_denominator(100_000), options=dict(options)
            )
            self._stream.pix_fmt = DEPTH_PIXEL_FORMAT if codec == DEPTH_CODEC else PIXEL_FORMAT
            self._stream.width, self._stream.height = width, height
            self._open(options)
        except BaseException:
            self._container.close()
            raise

    @property
    def bytes(self) -> int:
        """Bytes of the packets so far. The encoder holds some frames back."""
        return self._bytes

    def add(self, frames: npt.NDArray[Any], *, begins: bool) -> None:
        """Encodes frames, uint8 [n, H, W, 3], or numbers of depth, uint16 [n, H, W].

        Args:
            frames: the frames.
            begins: whether an episode begins with them.
        """
        for number, pixels in enumerate(frames):
            frame = self._frame(np.ascontiguousarray(pixels))
            frame.pts = self.frames
            if begins and number == 0:
                frame.pict_type = self._av.video.frame.PictureType.I
            self._write(frame)
            self.frames += 1

    def finish(self) -> None:
        """Encodes the frames that were held back, and closes the file."""
        try:
            self._write(None)
        finally:
            self._container.close()

    def abort(self) -> None:
        """Closes the file. It is of no use."""
        self._container.close()

    def _frame(self, pixels: npt.NDArray[Any]) -> Any:
        if pixels.dtype == np.uint8:
            return self._av.VideoFrame.from_ndarray(pixels, format="rgb24")
        # PyAV 15 copies such an array wrongly where FFmpeg aligns the rows of a frame.
        height, width = pixels.shape
        frame = self._av.VideoFrame(width, height, DEPTH_PIXEL_FORMAT)
        (plane,) = frame.planes
        rows = np.zeros((plane.buffer_size // plane.line_size, plane.line_size // 2), np.uint16)
        rows[:height, :width] = pixels
        plane.update(rows)
        return frame

    def _open(self, options: Mapping[str, str]) -> None:
        context = self._stream.codec_context
        try:
            open_encoder(context)
        except OSError:  # the disk
            raise
        except self._av.FFmpegError as error:
            raise InvalidArgumentError(
                f"{self._codec} cannot encode frames of {self._stream.height} x {self._stream.width} with the options "
                f"{dict(options)}: {error}",
                hint=f"correct the options, or try another codec: {', '.join(ENCODERS)}",
            ) from error
        if context.options:
            raise InvalidArgumentError(
                f"the encoder {self._stream.codec_context.codec.name} has no option {', '.join(context.options)}",
                hint=f"see: ffmpeg -h encoder={self._stream.codec_context.codec.name}",
            )

    def _write(self, frame: Any) -> None:
        try:
            for packet in self._stream.encode(frame):
                self._bytes += packet.size
                self._container.mux(packet)
        except OSError:  # the disk
            raise
        except self._av.FFmpegError as error:
            raise InvalidArgumentError(
                f"{self._codec} cannot encode frames of {self._stream.height} x {self._stream.width}: {error}",
                hint=f"try another codec: {', '.join(ENCODERS)}",
            ) from error


def open_encoder(context: Any) -> None:
    """Opens a codec context of PyAV, and gives its threads the normal scheduling policy.

    SVT-AV1 run by root asks for the real-time policy SCHED_FIFO at the highest priority
    (`svt_create_thread`). Its threads then stop all other processes of a small machine for minutes.
    Threads that were real-time before stay so.

    Raises:
        av.FFmpegError: the encoder does not take these settings.
    """
    before = set(_real_time_threads())
    try:
        context.open(strict=False)
    finally:
        for thread in set(_real_time_threads()) - before:
            _set_normal(thread)


def _real_time_threads() -> list[int]:
    if not hasattr(os, "sched_getscheduler"):  # macOS
        return []
    return [thread for thread in map(int, os.listdir(_THREADS)) if _is_real_time(thread)]


def _is_real_time(thread: int) -> bool:
    try:
        return os.sched_getscheduler(thread) in (os.SCHED_FIFO, os.SCHED_RR)
    except ProcessLookupError:  # the thread has ended
        return False


def _set_normal(thread: int) -> None:
    try:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
    except ProcessLookupError:  # the thread has ended
        return
