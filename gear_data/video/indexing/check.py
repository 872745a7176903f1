"""check_file: compares a video file with its index, and decodes its frames."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from gear_data.errors import CorruptShardError, CorruptSourceError
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.file_index import Packets, VideoFile
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.indexing.demux import index_file
from gear_data.video.packet_bytes import LocalPackets

#: Remedy for a damaged file.
_RESTORE = "restore the file, or convert again"
#: Bytes of pixels that are decoded at once.
_BYTES = 32 << 20


def check_file(path: Path, video: VideoFile, threads: int) -> None:
    """Indexes a file again and compares it with its index. A file that was not read has no checksums to compare.

    FFmpeg reads the file in this process.

    Args:
        path: the file.
        video: its index.
        threads: threads that decode every frame. 0: no frame is decoded.

    Raises:
        CorruptShardError: the file differs from its index, or a frame cannot be decoded.
        MissingExtraError: PyAV is not installed.
    """
    try:
        found = index_file(path, video.file)
    except CorruptSourceError as error:
        raise CorruptShardError(error.message, file=str(path), hint=_RESTORE) from error
    # Damage gives the file other packets too. The checksum says more.
    for name in ("checksum", *(field.name for field in fields(VideoFile))):
        if name == "packets" or (name == "checksum" and not video.was_read):
            continue
        if getattr(found, name) != getattr(video, name):
            raise CorruptShardError(
                f"its {name} is {getattr(found, name)!r}, the index says {getattr(video, name)!r}",
                file=str(path),
                hint=_RESTORE,
            )
    for field in fields(Packets):
        if field.name in ("digest", "flags") and not video.was_read:
            continue
        if not np.array_equal(getattr(found.packets, field.name), getattr(video.packets, field.name)):
            raise CorruptShardError(
                "the packets in the index are not the packets of the file",
                file=str(path),
                column=field.name,
                hint=_RESTORE,
            )
    if threads:
        _decode(found, path, threads)


def _decode(video: VideoFile, path: Path, threads: int) -> None:
    index = VideoIndex(*index_tables([video]), str(path))
    packets = LocalPackets(partial(_map, path), _unchanged)
    reader = FrameReader(index, packets, DecodeOptions(threads=threads, cache_bytes=_BYTES, strict=True))
    frame_bytes = video.height * video.width * 3
    at_once = max(1, _BYTES // frame_bytes)
    for first in range(0, video.num_frames, at_once):
        frames = np.arange(first, min(first + at_once, video.num_frames))
        out = np.empty((len(frames), video.height, video.width, 3), np.uint8)
        try:
            reader.read(np.zeros(len(frames), np.int64), frames, out)
        except CorruptShardError as error:
            raise CorruptShardError(error.message, file=str(path), hint=_RESTORE) from error


def _map(path: Path, number: int) -> pa.Buffer:
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _unchanged(number: int) -> None:
    """Does nothing: the file was compared with its checksum a moment ago."""
