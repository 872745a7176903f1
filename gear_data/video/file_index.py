"""VideoFile: one video file as its index describes it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

#: The beginning of a checksum of bytes.
_OF_BYTES = "xxh3-128:"
#: Flags of a packet: it is a key frame; its frame is not shown (an edit list cuts it off).
KEY, DISCARD = 1, 2


@dataclass(frozen=True, eq=False)
class Packets:
    """The n packets of a video stream, in decoding order.

    Attributes:
        pts: int64 [n], presentation times in the file's time base.
        position: int64 [n], the first byte of each packet in the file.
        size: int32 [n], bytes.
        flags: uint8 [n], `KEY` and `DISCARD`, combined by or.
        digest: uint64 [n], xxh3-64 of each packet's bytes; of its place and the file's `checksum` if the file was not
            read.
    """

    pts: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    size: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]
    digest: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.pts)


#: The packets of a file whose index was not read.
NO_PACKETS = Packets(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.uint64)
)


@dataclass(frozen=True)
class ColorProperties:
    """Colours of a frame's numbers: FFmpeg's constants in the container.

    A decoder takes them where the stream itself does not say. 2 is "unspecified", and 0 for the range.

    Attributes:
        range: AVCOL_RANGE_*.
        space: AVCOL_SPC_*.
        primaries: AVCOL_PRI_*.
        transfer: AVCOL_TRC_*.
    """

    range: int = 0
    space: int = 2
    primaries: int = 2
    transfer: int = 2


def is_of_bytes(checksum: str) -> bool:
    """Returns whether a file's checksum is one of its bytes, and no name that a server gives its contents."""
    return checksum.startswith(_OF_BYTES)


@dataclass(frozen=True, eq=False)
class VideoFile:
    """A video file: everything that decoding needs except the bytes of its packets.

    Attributes:
        file: path in the dataset's folder (`videos/...`); an absolute path or a URL if conversion only linked the file.
        size: bytes of the file.
        checksum: `xxh3-128:HEX` of the file. Of a file that was not read, the name that its server gives its contents
            (`contents_name`).
        codec: FFmpeg's name of the codec, such as `av1`, `h264`, `hevc` or `mpeg4`.
        extradata: the codec's parameters from the container.
        pixel_format: FFmpeg's name, such as `yuv420p`.
        height, width: of the frames.
        colors: from the container.
        time_base: seconds of one unit of `Packets.pts`.
        packets: the packets of the video stream.
    """

    file: str
    size: int
    checksum: str
    codec: str
    extradata: bytes
    pixel_format: str
    height: int
    width: int
    colors: ColorProperties
    time_base: Fraction
    packets: Packets

    @property
    def was_read(self) -> bool:
        """Whether the file was read whole. Otherwise only the index in it was, and no checksum of bytes is known."""
        return is_of_bytes(self.checksum)

    @cached_property
    def frames(self) -> npt.NDArray[np.int64]:
        """int64 [frames]: the packet of each frame, in presentation order."""
        shown = np.flatnonzero(self.packets.flags & DISCARD == 0)
        return shown[np.argsort(self.packets.pts[shown], kind="stable")]

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """float64 [frames]: the presentation time of each frame in seconds."""
        pts = self.packets.pts[self.frames]
        return pts * self.time_base.numerator / self.time_base.denominator

    @property
    def num_frames(self) -> int:
        """The number of frames."""
        return len(self.frames)

    @property
    def fps(self) -> float | None:
        """Frames per second, by the median distance; None for a single frame."""
        distances = np.diff(self.packets.pts[self.frames])
        distance = Fraction(float(np.median(distances))) * self.time_base if len(distances) else Fraction(0)
        return float(1 / distance) if distance > 0 else None
