"""Puts packets into a Matroska container, for libraries that want whole files.

PyAV cannot write these files (tried with 18.1). A stream that it makes without an encoder takes neither the codec's
parameters nor colours, so H.264 is refused. With an encoder, each group of pictures would start one; x265 also refuses
the parameters of another encoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from gear_data.video.decoding.decoder import EncodedPacket
from gear_data.video.file_index import VideoFile

#: FFmpeg's names of codecs -> Matroska's.
CODECS = {
    "av1": "V_AV1",
    "h264": "V_MPEG4/ISO/AVC",
    "hevc": "V_MPEGH/ISO/HEVC",
    "mpeg4": "V_MPEG4/ISO/ASP",
    "vp8": "V_VP8",
    "vp9": "V_VP9",
}
#: Milliseconds from one frame to the next. A block holds its time from that of its cluster, in 16 bits with a sign.
_STEP, _LONGEST = 10, 32_000
#: The id of each element.
_EBML, _DOC_TYPE, _SEGMENT, _INFO, _SCALE = (
    b"\x1a\x45\xdf\xa3",
    b"\x42\x82",
    b"\x18\x53\x80\x67",
    b"\x15\x49\xa9\x66",
    b"\x2a\xd7\xb1",
)
_TRACKS, _TRACK, _NUMBER, _UID, _TYPE = b"\x16\x54\xae\x6b", b"\xae", b"\xd7", b"\x73\xc5", b"\x83"
_CODEC, _PRIVATE, _VIDEO, _WIDTH, _HEIGHT = b"\x86", b"\x63\xa2", b"\xe0", b"\xb0", b"\xba"
_COLOUR, _MATRIX, _RANGE, _TRANSFER, _PRIMARIES = b"\x55\xb0", b"\x55\xb1", b"\x55\xb9", b"\x55\xba", b"\x55\xbb"
_CLUSTER, _TIME, _BLOCK = b"\x1f\x43\xb6\x75", b"\xe7", b"\xa3"


def in_matroska(video: VideoFile, packets: Sequence[EncodedPacket]) -> bytes:
    """Returns a file with some packets of a video.

    Its frames are 10 ms apart, in presentation order.

    Args:
        video: the file of the packets; its codec is one of `CODECS`.
        packets: the first one is a key frame.
    """
    colors = video.colors
    colour = b"".join(
        _number(element, value)
        for element, value in (
            (_MATRIX, colors.space),
            (_RANGE, colors.range),
            (_TRANSFER, colors.transfer),
            (_PRIMARIES, colors.primaries),
        )
    )
    frame = _number(_WIDTH, video.width) + _number(_HEIGHT, video.height) + _element(_COLOUR, colour)
    track = _number(_NUMBER, 1) + _number(_UID, 1) + _number(_TYPE, 1) + _element(_VIDEO, frame)
    track += _element(_CODEC, CODECS[video.codec].encode())
    if video.extradata:
        track += _element(_PRIVATE, video.extradata)
    ranks = {pts: rank for rank, pts in enumerate(sorted(each.pts for each in packets))}
    clusters: list[tuple[int, list[bytes]]] = [(0, [])]
    for at, each in enumerate(packets):
        time = _STEP * ranks[each.pts]
        if abs(time - clusters[-1][0]) > _LONGEST:
            clusters.append((time, []))
        begin, blocks = clusters[-1]
        head = b"\x81" + (time - begin).to_bytes(2, signed=True) + (b"\x00" if at else b"\x80")
        blocks.append(_element(_BLOCK, head + each.data))
    segment = (
        _element(_INFO, _number(_SCALE, 1_000_000))
        + _element(_TRACKS, _element(_TRACK, track))
        + b"".join(_element(_CLUSTER, _number(_TIME, begin) + b"".join(blocks)) for begin, blocks in clusters)
    )
    return _element(_EBML, _element(_DOC_TYPE, b"matroska")) + _element(_SEGMENT, segment)


def _element(identifier: bytes, content: bytes) -> bytes:
    return identifier + (len(content) | 1 << 56).to_bytes(8) + content


def _number(identifier: bytes, value: int) -> bytes:
    return _element(identifier, value.to_bytes(4))
