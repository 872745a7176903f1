"""Demuxing: the packets of a video file, found without decoding."""

from __future__ import annotations

import mmap
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from gear_data.common.extras import import_extra
from gear_data.common.regular_files import open_regular
from gear_data.errors import CorruptSourceError, GearError
from gear_data.video.file_index import DISCARD, KEY, ColorProperties, Packets, VideoFile
from gear_data.video.indexing.entry_points import entry_test

#: Most pixels of a frame: DCI 8K. A header may declare any size, and a decoder allocates up to 17 such frames.
MAX_PIXELS = 8192 * 4320
#: Remedies.
_AGAIN = "copy or download the file again; --on-bad-episode skip leaves its episodes out"
_ENCODE = "encode the video again (ffmpeg -i OLD -c:v libx264 -g 2 NEW.mp4)"


def index_file(path: Path, file: str, contents: str = "") -> VideoFile:
    """Indexes a video file. Reads the whole file once, and decodes no frame.

    Of a file at a URL, `path` may have the beginning and the index of the file, and a hole for the rest. Its packets
    are then known by their places in the file, and whether decoding can begin with a packet is tested when it is read.

    FFmpeg parses the file in this process: `index_files` does so in a worker process that may crash.

    Args:
        path: the file.
        file: its name in the index, and in errors.
        contents: the name of the file's contents, if `path` has a hole; else empty.

    Raises:
        CorruptSourceError: the file cannot be read, is no video, is damaged, or has several video streams. Or its
            frames cannot be read one by one: they have no times, or their packets are not bytes of the file.
        MissingExtraError: PyAV is not installed.
    """
    av = import_extra("av", "video")
    # PyAV 19 has no such argument.
    lenient = {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}
    try:
        with open_regular(path) as opened:
            if not (size := os.fstat(opened.fileno()).st_size):
                raise CorruptSourceError("the video file is empty", file=file, hint=_AGAIN)
            data = memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
    except OSError as error:
        raise CorruptSourceError(f"cannot be read: {error.strerror or error}", file=file, hint=_AGAIN) from error
    try:
        with av.open(str(path), **lenient) as container:
            stream = _video_stream(container, file)
            if not contents:
                checksum = f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"
                return _described(stream, _packets(container, stream, data, file, ""), checksum, size, file)
            # FFmpeg's parsers would look for key frames in the hole.
            with av.open(str(path), **lenient, options={"fflags": "+noparse+nofillin"}) as unparsed:
                packets = _packets(unparsed, _video_stream(unparsed, file), data, file, contents)
            return _described(stream, packets, contents, size, file)
    except GearError:  # a ValueError, too
        raise
    except (av.error.FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CorruptSourceError(f"FFmpeg cannot read it: {reason}", file=file, hint=_AGAIN) from error


def _video_stream(container: Any, file: str) -> Any:
    """Returns the only video stream.

    Pictures that are attached to a file are no streams of frames.
    """
    streams = [each for each in container.streams.video if "attached_pic" not in str(each.disposition).lower()]
    if len(streams) != 1:
        raise CorruptSourceError(f"has {len(streams)} video streams, where 1 is expected", file=file, hint=_ENCODE)
    (stream,) = streams
    context = stream.codec_context
    if context.width < 1 or context.height < 1 or context.pix_fmt is None:
        raise CorruptSourceError("declares no size or pixel format of its frames", file=file, hint=_AGAIN)
    if context.width * context.height > MAX_PIXELS:
        raise CorruptSourceError(
            f"declares frames of {context.width} x {context.height} pixels, more than {MAX_PIXELS:,}",
            file=file,
            hint=_AGAIN,
        )
    return stream


def _packets(container: Any, stream: Any, data: memoryview, file: str, contents: str) -> Packets:
    found: list[tuple[int, int, int, int, int]] = []
    total = 0
    can_begin = entry_test(stream.codec_context.codec.canonical_name, bytes(stream.codec_context.extradata or b""))
    for packet in container.demux(stream):
        if not packet.size:
            continue  # the last one tells the decoder to drain
        first, size = packet.pos, packet.size
        total += size
        if total > len(data):  # a small file may declare the same bytes as millions of packets
            raise CorruptSourceError("its packets have more bytes than the file", file=file, hint=_AGAIN)
        if packet.pts is None:
            raise CorruptSourceError(f"frame {len(found)} has no presentation time", file=file, hint=_ENCODE)
        payload = bytes(packet)
        if first is None or first < 0 or data[first : first + size] != payload:
            raise CorruptSourceError(
                f"the bytes of packet {len(found)} are not stored in one piece", file=file, hint=_ENCODE
            )
        key = packet.is_keyframe and (bool(contents) or can_begin(payload))
        flags = KEY * key | DISCARD * packet.is_discard
        hashed = f"{contents} {first} {size}".encode() if contents else payload
        found.append((packet.pts, first, size, flags, xxhash.xxh3_64_intdigest(hashed)))
    columns = zip(*found, strict=True) if found else ((),) * 5
    types = (np.int64, np.int64, np.int32, np.uint8, np.uint64)
    packets = Packets(*(np.array(column, dtype) for column, dtype in zip(columns, types, strict=True)))
    _check(packets, file)
    return packets


def _check(packets: Packets, file: str) -> None:
    """Raises CorruptSourceError if frames cannot be numbered.

    The first packet must be a key frame.
    """
    shown = packets.pts[packets.flags & DISCARD == 0]
    if not len(shown):
        raise CorruptSourceError("has no frames", file=file, hint=_AGAIN)
    if not packets.flags[0] & KEY:
        raise CorruptSourceError("does not begin with a key frame", file=file, hint=_ENCODE)
    times, counts = np.unique(shown, return_counts=True)
    if len(times) < len(shown):
        twice = int(times[np.argmax(counts > 1)])
        raise CorruptSourceError(f"two frames have the presentation time {twice}", file=file, hint=_ENCODE)


def _described(stream: Any, packets: Packets, checksum: str, size: int, file: str) -> VideoFile:
    context = stream.codec_context
    return VideoFile(
        file=file,
        size=size,
        checksum=checksum,
        codec=context.codec.canonical_name,
        extradata=bytes(context.extradata or b""),
        pixel_format=context.pix_fmt,
        height=context.height,
        width=context.width,
        colors=ColorProperties(
            int(context.color_range), int(context.colorspace), int(context.color_primaries), int(context.color_trc)
        ),
        time_base=Fraction(stream.time_base),
        packets=packets,
    )
