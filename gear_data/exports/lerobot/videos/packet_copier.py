"""PacketCopier: encoded frames of several files to one MP4 file."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import xxhash

from gear_data.common.extras import import_extra
from gear_data.dataset.cameras.stored_videos import StoredVideos
from gear_data.errors import CorruptShardError
from gear_data.video.file_index import KEY
from gear_data.video.packet_file import PacketFile

#: Bytes of packets that are read together.
_BYTES_AT_ONCE = 8 << 20


class PacketCopier:
    """Writes packets into one MP4 file, without decoding them.

    Their times are new: frame n is at n / fps.

    Args:
        path: the file.
        videos: the dataset's videos.
        number: the first video file whose packets are copied. The others have its codec, parameters and frame size.
        fps: frames per second.

    Attributes:
        frames: number of frames so far.
        bytes: bytes of the packets so far.

    Raises:
        MissingExtraError: PyAV is not installed.
    """

    def __init__(self, path: Path, videos: StoredVideos, number: int, fps: float) -> None:
        self._av = import_extra("av", "video")
        self.frames = self.bytes = 0
        self._videos = videos
        self._time_base = 1 / Fraction(fps).limit_denominator(100_000)
        self._format = _format(videos, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container: Any = self._av.open(str(path), "w")
        try:
            with self._av.open(PacketFile(videos.packets, number, videos.index.listed(number).size)) as source:
                self._stream = self._container.add_stream_from_template(source.streams.video[0], opaque=True)
        except BaseException:
            self._container.close()
            raise

    def takes(self, number: int) -> bool:
        """Returns whether packets of a video file can be in this file."""
        return _format(self._videos, number) == self._format

    def add(self, number: int, first: int, last: int) -> None:
        """Copies the packets `first` to `last` - 1 of a video file.

        A packet is a frame, and the first is a key frame.

        Raises:
            CorruptShardError: the video is damaged.
        """
        video = self._videos.index.file(number)
        packets, begin = video.packets, first
        while begin < last:
            size, end = int(packets.size[begin]), begin + 1
            while end < last and size + int(packets.size[end]) <= _BYTES_AT_ONCE:
                size += int(packets.size[end])
                end += 1
            spans = zip(packets.position[begin:end].tolist(), packets.size[begin:end].tolist(), strict=True)
            parts = self._videos.packets.read([(number, start, start + length) for start, length in spans])
            for packet, part in enumerate(parts, begin):
                if video.was_read and xxhash.xxh3_64_intdigest(part) != int(packets.digest[packet]):
                    raise CorruptShardError(
                        f"packet {packet} at byte {packets.position[packet]} has changed",
                        file=video.file,
                        hint="run 'gear-data verify', then restore the file or convert again",
                    )
                self._write(part, is_key=bool(packets.flags[packet] & KEY))
            begin = end

    def _write(self, data: memoryview, *, is_key: bool) -> None:
        packet = self._av.Packet(len(data))
        packet.update(data)
        packet.stream, packet.time_base = self._stream, self._time_base
        packet.pts = packet.dts = self.frames
        packet.duration, packet.is_keyframe = 1, is_key
        self._container.mux(packet)
        self.frames += 1
        self.bytes += len(data)

    def finish(self) -> None:
        """Closes the file."""
        self._container.close()


def _format(videos: StoredVideos, number: int) -> tuple[Any, ...]:
    """Returns codec, parameters and frame size, which one MP4 file has once."""
    video = videos.index.file(number)
    return video.codec, video.extradata, video.pixel_format, video.height, video.width
