"""Small video files of many codecs, their index, and their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import xxhash

from gear_data.video.encoding.encoder import open_encoder
from gear_data.video.file_index import DISCARD, KEY, ColorProperties, Packets, VideoFile
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.packet_bytes import LocalPackets

Frames = npt.NDArray[np.uint8]

#: The planes of a frame are given only if its colours are known.
needs_colours = pytest.mark.skipif(
    not hasattr(av.VideoFrame, "color_primaries"), reason="this PyAV does not know the colours of a frame"
)


@dataclass(frozen=True)
class Encoding:
    """How a file is encoded.

    Attributes:
        codec: FFmpeg's encoder.
        options: of the encoder.
        group: frames of a group of pictures.
        b_frames: most B frames in a row; None: the encoder's default.
        pixel_format: of the stream.
        colors: attributes of the encoder's context.
    """

    codec: str
    options: Mapping[str, str] = field(default_factory=dict)
    group: int = 6
    b_frames: int | None = None
    pixel_format: str = "yuv420p"
    colors: Mapping[str, int] = field(default_factory=dict)


_X265 = "log-level=none:pools=1:frame-threads=1:"
ENCODINGS: Mapping[str, Encoding] = {
    "h264": Encoding("libx264", {"preset": "ultrafast", "x264-params": "scenecut=0"}, b_frames=0),
    "h264 with B frames": Encoding("libx264", {"x264-params": "bframes=3:b-pyramid=normal:b-adapt=0:scenecut=0"}),
    "h264, open groups": Encoding("libx264", {"x264-params": "bframes=3:b-adapt=0:open-gop=1:scenecut=0"}),
    "h264, full range": Encoding("libx264", pixel_format="yuvj420p", colors={"colorspace": 1, "color_range": 2}),
    "h264, no subsampling": Encoding("libx264", pixel_format="yuv444p"),
    "hevc, open groups": Encoding("libx265", {"x265-params": _X265 + "open-gop=1:bframes=3:scenecut=0"}),
    "hevc": Encoding("libx265", {"x265-params": _X265 + "open-gop=0:bframes=0"}, group=4),
    "mpeg4": Encoding("mpeg4", b_frames=0, group=12),
    "mpeg4, open groups": Encoding("mpeg4", b_frames=2),
    "av1, 10 bits": Encoding("libsvtav1", {"preset": "12"}, pixel_format="yuv420p10le"),
    "av1, groups of 2": Encoding("libsvtav1", {"preset": "12"}, group=2),
    "av1": Encoding("libsvtav1", {"preset": "12"}, group=10),
    "vp9": Encoding("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "8"}),
}


def encode(
    path: Path, encoding: Encoding, *, frames: int = 26, height: int = 48, width: int = 64, seed: int = 0
) -> None:
    """Writes an MP4 file of moving random blocks."""
    generator = np.random.default_rng(seed)
    scene = generator.integers(0, 256, (height // 8 + 4, width // 8 + 4, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(encoding.codec, rate=30, options=dict(encoding.options))
        stream.height, stream.width, stream.pix_fmt = height, width, encoding.pixel_format
        context = stream.codec_context
        context.gop_size, context.thread_count = encoding.group, 1
        if encoding.b_frames is not None:
            context.max_b_frames = encoding.b_frames
        for name, value in encoding.colors.items():
            setattr(context, name, value)
        open_encoder(context)
        for number in range(frames):
            y, x = number % 24, 2 * number % 32
            image = np.ascontiguousarray(scene[y : y + height, x : x + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))


def index_of(path: Path) -> VideoFile:
    """Returns the index of a file, made by PyAV's demuxer."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        packets = [packet for packet in container.demux(stream) if packet.size]
        flags = [KEY * packet.is_keyframe | DISCARD * packet.is_discard for packet in packets]
        return VideoFile(
            file=str(path),
            size=path.stat().st_size,
            checksum=f"xxh3-128:{xxhash.xxh3_128_hexdigest(path.read_bytes())}",
            codec=context.codec.canonical_name,
            extradata=context.extradata or b"",
            pixel_format=context.pix_fmt,
            height=context.height,
            width=context.width,
            colors=ColorProperties(context.color_range, context.colorspace, context.color_primaries, context.color_trc),
            time_base=stream.time_base,
            packets=Packets(
                pts=np.array([packet.pts for packet in packets], np.int64),
                position=np.array([packet.pos for packet in packets], np.int64),
                size=np.array([packet.size for packet in packets], np.int32),
                flags=np.array(flags, np.uint8),
                digest=np.array([xxhash.xxh3_64_intdigest(bytes(packet)) for packet in packets], np.uint64),
            ),
        )


def decoded(path: Path) -> Frames:
    """Returns all frames of a file, as sequential decoding gives them: uint8 [n, H, W, 3]."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def _map(paths: Sequence[Path], number: int) -> pa.Buffer:
    return pa.py_buffer(paths[number].read_bytes())


def _unchanged(number: int) -> None:
    pass


def video_index(paths: Sequence[Path]) -> VideoIndex:
    return VideoIndex(*index_tables([index_of(path) for path in paths]), "dataset")


def local_packets(paths: Sequence[Path]) -> LocalPackets:
    mapped: Callable[[int], pa.Buffer] = partial(_map, paths)
    return LocalPackets(mapped, _unchanged)
