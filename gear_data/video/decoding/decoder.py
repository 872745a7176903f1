"""Decoder: the Protocol of a library that decodes groups of pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptShardError
from gear_data.video.decoding.yuv import YuvConversion
from gear_data.video.file_index import VideoFile


class DecodeError(Exception):
    """Raised by a decoder; the reader names the file and the frame."""


class NoPlanesError(Exception):
    """Raised by a decoder for a frame whose YUV it cannot give. It can give RGB."""


@dataclass(frozen=True, slots=True)
class EncodedPacket:
    """A packet of a video stream.

    Attributes:
        pts: presentation time in the file's time base.
        data: the bytes.
    """

    pts: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded frame.

    Attributes:
        pts: presentation time in the file's time base.
        image: as the library gave the frame.
        height, width: of the frame.
        bytes: memory of `image`.
        damaged: whether the library reports damage in the frame, which it concealed.
    """

    pts: int
    image: Any
    height: int
    width: int
    bytes: int
    damaged: bool = False


class Decoder(Protocol):
    """Decodes groups of pictures of files with equal parameters.

    One thread at a time uses a decoder.
    """

    def decode(self, packets: Sequence[EncodedPacket], since: int) -> Iterator[Picture]:
        """Yields the frames that are shown at a time or later, in presentation order.

        Args:
            packets: in decoding order. The first packet is a key frame.
            since: the time. Earlier frames need packets before the first.

        Raises:
            DecodeError: a packet does not decode.
            DeviceError, DeviceMemoryError: the GPU that decodes fails.
        """

    def write(self, picture: Picture, out: npt.NDArray[Any]) -> None:
        """Writes a frame as RGB into uint8 [H, W, 3], scaled to H and W.

        `pyav` also writes the 12-bit numbers of a frame of depth into uint16 [H, W, 1].
        """

    def write_planes(self, picture: Picture, out: npt.NDArray[np.uint8]) -> YuvConversion:
        """Writes a frame as YUV into uint8 [bytes].

        Returns:
            How the numbers become the RGB of `write`.

        Raises:
            NoPlanesError: the frame has another format, or its RGB is computed in another way.
        """


def undecodable(video: VideoFile, frame: int | None, problem: object) -> CorruptShardError:
    """Returns the error for a file whose frames cannot be decoded.

    Args:
        video: the file.
        frame: number of a frame; None if all frames are affected.
        problem: the reason.
    """
    what = "its frames cannot" if frame is None else f"frame {frame} cannot"
    return CorruptShardError(
        f"{what} be decoded: {problem}",
        file=video.file,
        hint="run 'gear-data verify --decode', then restore the file or convert the source again",
    )
