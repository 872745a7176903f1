"""The parts of an MP4 file at a URL that say where its packets are, without the packets.

An MP4 file is a row of boxes: a length, four letters, contents (ISO/IEC 14496-12). `moov` is the index of `mdat`, and
is before or behind it. Other files are not read in parts.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from gear_data.storage.atomic import typed_write_errors

#: Bytes that are fetched from the beginning of a file on. Half as many of `mdat` are fetched, wherever it begins:
#: FFmpeg looks into the first packets.
_FRONT_BYTES = 32 << 10
#: Bytes that are fetched from the header of another box on. An index of 2,000 frames has fewer.
_AHEAD_BYTES = 128 << 10
#: Most bytes of an index.
_INDEX_BYTES = 64 << 20
#: Boxes that an indexed file has. Others, such as `moof`, divide the index into parts.
_INDEX, _MEDIA = b"moov", b"mdat"
_KNOWN = frozenset({b"ftyp", b"free", b"skip", b"wide", b"uuid", b"udta", b"meta", b"pdin", _INDEX, _MEDIA})
#: A box in `moov`: parts of the index follow in the file.
_DIVIDED = b"mvex"


def fetch_index(file: io.RawIOBase, path: Path) -> bool:
    """Writes the index and the first packets of a file at a URL to a file of its size, with a hole for the rest.

    Args:
        file: reads the file.
        path: where it is written.

    Returns:
        Whether it was. Otherwise the file has no index in one piece.

    Raises:
        RemoteError: the server cannot be reached, ignores ranges, or has other contents now.
        StorageFullError, UnwritableError: the file cannot be written.
    """
    parts = _Parts(file)
    if not parts.find_index():
        return False
    with typed_write_errors(path), path.open("wb") as target:
        os.truncate(target.fileno(), parts.size)
        for first, data in parts.fetched:
            target.seek(first)
            target.write(data)
    return True


class _Parts:
    """Parts of a file that were fetched: the first byte, and the bytes of each."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        self.fetched: list[tuple[int, bytes]] = []

    def find_index(self) -> bool:
        """Fetches the index of the file, and its first packets. Returns whether it has an index in one piece."""
        at, found = 0, set[bytes]()
        while not found >= {_INDEX, _MEDIA} and (box := self._box(at)) is not None:
            kind, last = box
            if kind not in _KNOWN or kind in found & {_INDEX, _MEDIA} or last > self.size:
                return False
            if kind == _INDEX and (last - at > _INDEX_BYTES or _DIVIDED in self._bytes(at, last)):
                return False
            if kind == _MEDIA:
                self._bytes(at, min(at + _FRONT_BYTES // 2, last))
            found.add(kind)
            at = last
        return found >= {_INDEX, _MEDIA}

    def _box(self, at: int) -> tuple[bytes, int] | None:
        """Returns the letters of the box at a byte, and the byte behind it; None at the end of the file."""
        if at + 8 > self.size:
            return None
        header = self._bytes(at, min(at + 16, self.size))
        length, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if length == 1:
            length = int.from_bytes(header[8:16], "big")
        elif length == 0:  # up to the end of the file
            length = self.size - at
        return kind, at + max(length, 8)

    def _bytes(self, first: int, last: int) -> bytes:
        """Returns bytes of the file. What is not here is fetched, with more bytes behind it."""
        for start, data in self.fetched:
            if start <= first and last <= start + len(data):
                return data[first - start : last - start]
            if start <= first < start + len(data):
                begun = data[first - start :]
                return begun + self._bytes(start + len(data), last)
        self._file.seek(first)
        wanted = min(max(last, first + (_AHEAD_BYTES if first else _FRONT_BYTES)), self.size) - first
        data = b""
        while len(data) < wanted and (part := self._file.read(wanted - len(data))):
            data += part
        self.fetched.append((first, data))
        return data[: last - first]
