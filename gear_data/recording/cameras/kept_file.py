"""KeptFile: a file that keeps in memory what a full disk does not take."""

from __future__ import annotations

import io
import os
from pathlib import Path

from gear_data.storage.atomic import fsync, typed_write_errors
from gear_data.storage.journal.videos import create_video


class KeptFile(io.RawIOBase):
    """A new file for a writer that cannot repeat a write: FFmpeg.

    The disk's first error does not reach the writer. From then on, written bytes stay in memory, until `save` writes
    them.

    Args:
        path: the file, which must not exist. Missing parent folders are created.

    Raises:
        StorageFullError, UnwritableError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._position = self._end = 0
        #: Position -> bytes that are not in the file, in the order of their writes.
        self._kept: list[tuple[int, bytes]] = []
        with typed_write_errors(path):
            self._descriptor = create_video(self._path)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        """Writes bytes at the position. Raises no OSError."""
        part = bytes(data)  # type: ignore[call-overload]
        if self._kept:
            self._kept.append((self._position, part))
        else:
            try:
                self._put(self._position, part)
            except OSError:
                self._kept.append((self._position, part))
        self._position += len(part)
        self._end = max(self._end, self._position)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def save(self, *, sync: bool) -> None:
        """Writes what is only in memory.

        Args:
            sync: wait until the disk has the file.

        Raises:
            StorageFullError, UnwritableError: the disk does not take it. `save` can be called again.
        """
        with typed_write_errors(self._path):
            while self._kept:
                self._put(*self._kept[0])
                del self._kept[0]
            if sync:
                os.fsync(self._descriptor)
                fsync(self._path.parent)

    def close(self) -> None:
        """Closes the file. What is only in memory is lost."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _put(self, at: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], at + done)
