"""Videos of episodes on the way from a writer to the server: chunks of bytes after the episode's record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import xxhash

from gear_data.cluster.flight.protected_server import next_chunk
from gear_data.cluster.protocol import MESSAGE_BYTES
from gear_data.errors import CorruptSourceError, NodeRefusedError
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.journal.record import RecordedVideo
from gear_data.storage.journal.videos import create_video, remove_videos, video_file


def video_chunks(path: Path) -> Iterator[bytes]:
    """Yields the bytes of a video.

    Raises:
        CorruptSourceError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            while chunk := file.read(MESSAGE_BYTES):
                yield chunk
    except OSError as error:
        raise CorruptSourceError(f"cannot be read: {error.strerror or error}", file=str(path)) from error


class ReceivedVideos:
    """The videos of one episode, which a server receives into files. Without `keep`, the files are removed at the end.

    Args:
        folder: the folder of the journals.
        number: number of the files, which no other file has.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._paths: list[Path] = []

    def receive(self, reader: Any, videos: Mapping[str, RecordedVideo]) -> dict[str, RecordedVideo]:
        """Receives the videos in order.

        Args:
            reader: of the call.
            videos: camera -> its video on the writer's machine.

        Returns:
            The same videos in this machine's files.

        Raises:
            NodeRefusedError: a video is cut, or differs from its checksum.
            StorageFullError, UnwritableError: the disk does not take them.
        """
        found = {}
        for camera, video in videos.items():
            name = video_file(camera, self._number)
            path = self._folder / name
            with typed_write_errors(path), open(create_video(path), "wb") as file:
                self._paths.append(path)
                _receive(reader, camera, video, file)
            found[camera] = RecordedVideo(name, video.bytes, video.checksum)
        return found

    def keep(self) -> None:
        """Keeps the files."""
        self._paths.clear()

    def __enter__(self) -> ReceivedVideos:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._paths:
            with suppress(OSError):  # a later server removes them
                remove_videos(self._folder, self._paths)


def _receive(reader: Any, camera: str, video: RecordedVideo, file: BinaryIO) -> None:
    digest, left = xxhash.xxh3_128(), video.bytes
    while left:
        chunk = next_chunk(reader)
        if chunk is None or chunk.data is not None or not chunk.app_metadata or chunk.app_metadata.size > left:
            raise NodeRefusedError(
                f"received a video of {camera} of another size than the declared {video.bytes:,} bytes"
            )
        data = memoryview(chunk.app_metadata)
        file.write(data)
        digest.update(data)
        left -= len(data)
    if f"xxh3-128:{digest.hexdigest()}" != video.checksum:
        raise NodeRefusedError(f"received a damaged video of {camera}: it differs from its checksum")
