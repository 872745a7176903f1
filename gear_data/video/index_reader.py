"""IndexReader: reads the indexes of video files when a frame of them is first wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gear_data.video.file_index import VideoFile


class IndexReader(Protocol):
    """Reads the indexes of the unindexed files of a `VideoIndex`, and keeps them on this machine. Thread-safe."""

    def read(self, number: int, expected: VideoFile, frames: int) -> VideoFile:
        """Returns a file with its packets.

        Args:
            number: of the file.
            expected: the file as the dataset describes it, without packets. `time_base` is the time of a frame.
            frames: the frames that the dataset's episodes have of it: frame i is i * `time_base` after 0 s.

        Raises:
            CorruptShardError: the file cannot be indexed, has frames of another size, or has not these frames.
            RemoteError: it cannot be fetched, or has other contents now.
            StorageFullError, UnwritableError: the index cannot be kept.
            MissingExtraError: PyAV is not installed.
        """

    def load(self, numbers: Sequence[int]) -> None:
        """Fetches the indexes of some files that are not on this machine, many at once. Raises as `read`."""

    def expect(self, numbers: Sequence[int]) -> Sequence[int]:
        """Begins to fetch indexes in other threads. Returns the files whose indexes are not on this machine yet."""
