"""PyavDecoder: decodes packets by PyAV, without a container."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.errors import CorruptShardError
from gear_data.video.decoding.decoder import REMEDY, EncodedPacket, Picture
from gear_data.video.file_index import VideoFile

#: Decoders for codecs whose decoder of the same name needs a GPU.
_DECODERS = {"av1": "libdav1d"}


@cache
def _av() -> Any:
    return import_extra("av", "video")


class PyavDecoder:
    """Decodes the packets of files with equal parameters. See `Decoder`.

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
            # Threads work on different groups, so a context needs no threads of its own.
            self._context.thread_count = 1
            # A stream may leave the colours to the container. What the stream says comes first.
            self._context.color_range = video.colors.range
            self._context.colorspace = video.colors.space
            self._context.color_primaries = video.colors.primaries
            self._context.color_trc = video.colors.transfer
            self._context.open()
        except (av.FFmpegError, ValueError) as error:
            raise CorruptShardError(
                f"FFmpeg cannot decode codec '{video.codec}' with these parameters: {error}",
                file=video.file,
                hint=REMEDY,
            ) from error
        self._reformatter = av.video.reformatter.VideoReformatter()

    def decode(self, video: VideoFile, packets: Sequence[EncodedPacket]) -> Iterator[Picture]:
        av = _av()
        context = self._context
        try:
            for each in packets:
                # FFmpeg reads beyond the end of a packet. A packet made by its size is padded, one over bytes is not.
                packet = av.Packet(len(each.data))
                packet.update(each.data)
                packet.pts = each.pts
                yield from map(_picture, context.decode(packet))
            yield from map(_picture, context.decode(None))
        except av.FFmpegError as error:
            raise CorruptShardError(str(error), file=video.file, hint=REMEDY) from error
        finally:
            context.flush_buffers()

    def write(self, picture: Picture, out: npt.NDArray[np.uint8]) -> None:
        height, width, _ = out.shape
        frame = self._reformatter.reformat(picture.image, width, height, "rgb24", threads=1)
        plane = frame.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(height, plane.line_size)
        np.copyto(out.reshape(height, 3 * width), rows[:, : 3 * width])


def _picture(frame: Any) -> Picture:
    return Picture(frame.pts, frame, sum(plane.buffer_size for plane in frame.planes))


def version() -> str:
    """Returns the versions of PyAV and of FFmpeg's decoders.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    av = _av()
    return f"pyav {av.__version__} (libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))})"
