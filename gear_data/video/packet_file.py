"""PacketFile: a video file of a dataset as a file object, wherever the file is."""

from __future__ import annotations

import io
from typing import Any

from gear_data.video.packet_bytes import PacketBytes


class PacketFile(io.RawIOBase):
    """Unbuffered reader of a video file.

    Args:
        packets: reads the file. A read raises its errors.
        number: of the file.
        size: bytes of the file.
    """

    def __init__(self, packets: PacketBytes, number: int, size: int) -> None:
        super().__init__()
        self._packets, self._number, self._size = packets, number, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._size - self._at))
        (found,) = self._packets.read([(self._number, self._at, self._at + count)])
        buffer[:count] = found
        self._at += count
        return count
