"""Decoder: the Protocol of a library that decodes, and how one is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptShardError
from gear_data.video.file_index import VideoFile

#: Remedy for a file that does not decode.
REMEDY = "run 'gear-data verify --decode', then restore the file or convert the source again"


@dataclass(frozen=True)
class EncodedPacket:
    """A packet of a video stream.

    Attributes:
        pts: presentation time in the file's time base.
        data: the bytes.
    """

    pts: int
    data: memoryview


@dataclass(frozen=True)
class Picture:
    """A decoded frame.

    Attributes:
        pts: presentation time in the file's time base.
        image: as the library gave the frame.
        bytes: memory of `image`.
    """

    pts: int
    image: Any
    bytes: int


class Decoder(Protocol):
    """Decodes groups of pictures of files that have equal parameters. One thread uses a decoder."""

    def decode(self, video: VideoFile, packets: Sequence[EncodedPacket]) -> Iterator[Picture]:
        """Yields the frames of some packets, in presentation order.

        Args:
            video: the file.
            packets: the first packet is a key frame.

        Raises:
            CorruptShardError: a packet does not decode.
        """

    def write(self, picture: Picture, out: npt.NDArray[np.uint8]) -> None:
        """Writes a frame as RGB into uint8 [H, W, 3], scaled to its size."""


def undecodable(video: VideoFile, frame: int, problem: object) -> CorruptShardError:
    """Returns the error for a frame that cannot be decoded."""
    return CorruptShardError(f"frame {frame} cannot be decoded: {problem}", file=video.file, hint=REMEDY)
