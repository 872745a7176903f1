"""PyavDecoder: decodes packets by PyAV, without a container."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.video.decoding.decoder import DecodeError, EncodedPacket, NoPlanesError, Picture, undecodable
from gear_data.video.decoding.yuv import YuvConversion, to_rgb, yuv_bytes, yuv_conversion
from gear_data.video.file_index import ColorProperties, VideoFile

#: Decoders for codecs whose decoder of the same name needs a GPU.
_DECODERS = {"av1": "libdav1d"}
#: Colours of a frame that older versions of PyAV do not say. They convert without them.
_LATER_COLORS = ("color_primaries", "color_trc")
#: Pixels of the frame that is converted to compare this machine's RGB with `to_rgb`.
_COMPARED_PIXELS = 1 << 16


@cache
def _av() -> Any:
    return import_extra("av", "video")


@cache
def _one_thread() -> dict[str, int]:
    """Returns the arguments by which FFmpeg's scaler uses one thread. The scaler of older versions has only one."""
    av = _av()
    try:
        av.video.reformatter.VideoReformatter().reformat(av.VideoFrame(2, 2, "rgb24"), threads=1)
    except TypeError:
        return {}
    return {"threads": 1}


class PyavDecoder:
    """Decodes the packets of files with equal parameters by PyAV. See `Decoder`.

    Args:
        video: one of the files.

    Raises:
        MissingExtraError: PyAV is not installed.
        CorruptShardError: FFmpeg has no decoder for the codec, or refuses its parameters.
    """

    def __init__(self, video: VideoFile) -> None:
        av = _av()
        try:
            self._context = av.CodecContext.create(_DECODERS.get(video.codec, video.codec), "r")
            self._context.extradata = video.extradata or None
            # Threads work on different groups, so a context needs no further threads.
            self._context.thread_count = 1
            # A stream may leave the colours to the container. The stream comes first.
            self._context.color_range = video.colors.range
            self._context.colorspace = video.colors.space
            self._context.color_primaries = video.colors.primaries
            self._context.color_trc = video.colors.transfer
            # FFmpeg would learn how far an H.264 stream reorders frames, and drop frames until it knows.
            self._guesses_order = video.codec == "h264"
            if self._guesses_order and not hasattr(self._context, "reorder_depth"):
                # Older versions of PyAV cannot say it. FFmpeg then takes what the stream allows, from the start.
                self._guesses_order, self._context.options = False, {"strict": "strict"}
            self._context.open()
        except (av.FFmpegError, ValueError) as error:
            raise undecodable(
                video, None, f"FFmpeg refuses codec '{video.codec}' with its parameters: {error}"
            ) from error
        self._reformatter, self._scaling = av.video.reformatter.VideoReformatter(), _one_thread()
        #: Bytes of a frame, by its format, height and width.
        self._bytes: dict[tuple[str, int, int], int] = {}

    def decode(self, packets: Sequence[EncodedPacket], since: int) -> Iterator[Picture]:
        av = _av()
        context = self._context
        if self._guesses_order:
            context.reorder_depth = max(context.reorder_depth, reorder_depth([each.pts for each in packets]))
        try:
            for each in packets:
                # FFmpeg reads beyond the end of a packet. A packet made by its size is padded, one over bytes is not.
                packet = av.Packet(len(each.data))
                packet.update(each.data)
                packet.pts = each.pts
                yield from self._pictures(context.decode(packet), since)
            yield from self._pictures(context.decode(None), since)
        except av.FFmpegError as error:
            raise DecodeError(f"FFmpeg says: {error}") from error
        finally:
            # Ends the stream, so that the context can begin another.
            context.flush_buffers()

    def _pictures(self, frames: Sequence[Any], since: int) -> Iterator[Picture]:
        for frame in frames:
            if frame.pts is None or frame.pts < since:
                continue
            form = frame.format.name, frame.height, frame.width
            size = self._bytes.get(form)
            if size is None:
                size = self._bytes[form] = sum(plane.buffer_size for plane in frame.planes)
            yield Picture(frame.pts, frame, form[1], form[2], size, frame.is_corrupt)

    def write(self, picture: Picture, out: npt.NDArray[Any]) -> None:
        height, width, _ = out.shape
        # Bilinear: when it scales down it averages over the pixels that a new pixel covers.
        form = "gray12le" if out.dtype == np.uint16 else "rgb24"
        frame = self._reformatter.reformat(picture.image, width, height, form, **self._scaling)
        plane = frame.planes[0]
        pixels, used = np.frombuffer(plane, np.uint8), out[0].nbytes
        if plane.line_size == used:
            np.copyto(out.reshape(-1).view(np.uint8), pixels)
        else:
            # FFmpeg aligns the rows of its frames.
            rows = pixels.reshape(height, plane.line_size)
            np.copyto(out.reshape(height, -1).view(np.uint8), rows[:, :used])

    def write_planes(self, picture: Picture, out: npt.NDArray[np.uint8]) -> YuvConversion:
        frame = picture.image
        if frame.interlaced_frame:
            # Lines 0 and 2 share u and v, and so do lines 1 and 3: FFmpeg's scaler converts each field by itself.
            raise NoPlanesError("an interlaced frame")
        colors = ColorProperties(
            frame.color_range, frame.colorspace, *(getattr(frame, name, 2) for name in _LATER_COLORS)
        )
        conversion = exact_conversion(frame.format.name, picture.width, colors)
        if conversion is None:
            raise NoPlanesError(f"a frame of {frame.format.name} with {colors}")
        first = 0
        for plane in frame.planes:
            last = first + plane.height * plane.width
            rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
            np.copyto(out[first:last].reshape(plane.height, plane.width), rows[: plane.height, : plane.width])
            first = last
        return conversion


@cache
def exact_conversion(pixel_format: str, width: int, colors: ColorProperties) -> YuvConversion | None:
    """Returns the integers by which FFmpeg's scaler converts frames on this machine.

    Returns None if no integers give its RGB: FFmpeg has code for each processor, and other processors round in other
    ways. A frame of random numbers is converted to find out.

    Args:
        pixel_format: FFmpeg's name.
        width: of the frames.
        colors: of the frames.
    """
    conversion = yuv_conversion(pixel_format, colors.space, colors.range)
    if conversion is None or width < 1 or width % 2:
        return None
    height = -(-_COMPARED_PIXELS // width // 2) * 2
    frame = _av().VideoFrame(width, height, pixel_format)
    frame.color_range, frame.colorspace = colors.range, colors.space
    for name, value in zip(_LATER_COLORS, (colors.primaries, colors.transfer), strict=True):
        if hasattr(frame, name):
            setattr(frame, name, value)
    planes = np.random.default_rng(0).integers(0, 256, yuv_bytes(height, width), np.uint8)
    first = 0
    for plane in frame.planes:
        last = first + plane.height * plane.width
        # `update` wants whole lines.
        lines = np.zeros((plane.buffer_size // plane.line_size, plane.line_size), np.uint8)
        lines[: plane.height, : plane.width] = planes[first:last].reshape(plane.height, plane.width)
        plane.update(lines)
        first = last
    rgb = frame.to_ndarray(format="rgb24")
    return conversion if np.array_equal(rgb, to_rgb(planes, height, width, conversion)) else None


def reorder_depth(pts: list[int]) -> int:
    """Returns how many frames a decoder holds back to give them in order.

    Args:
        pts: presentation times in decoding order.
    """
    ranks = np.argsort(np.argsort(pts))
    return max(0, int((np.arange(len(pts)) - ranks).max(initial=0)))


def version() -> str:
    """Returns the versions of PyAV and of FFmpeg's decoders.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    av = _av()
    return f"pyav {av.__version__} (libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))})"
