"""Packets at which decoding can begin, where a container says so of too many.

Decoding that begins elsewhere gives wrong frames, or none. FFmpeg looks into the packets of most codecs, or their
decoders refuse to begin there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gear_data.video.nal_units import IDR_SLICE, SEI, SLICE, nal_units

#: Type of H.264's SEI message for recovery points (ITU-T H.264, D.1.8).
_RECOVERY_POINT = 6
#: Types of HEVC's NAL units at which decoding can begin (ITU-T H.265, table 7-1: BLA, IDR, CRA).
_RANDOM_ACCESS = range(16, 22)


def entry_test(codec: str, extradata: bytes) -> Callable[[bytes], bool]:
    """Returns a function that says of a packet with the flag of a key frame whether decoding can begin there.

    Args:
        codec: FFmpeg's canonical name.
        extradata: the codec's parameters, which say how H.264's packets are divided.
    """
    if codec == "mpeg4":
        return _is_intra
    if codec == "h264":
        return partial(_is_whole, extradata=extradata)
    return lambda packet: True


def strict_entry_test(codec: str, extradata: bytes) -> Callable[[bytes], bool]:
    """Returns a function that says whether decoding can begin with a packet, of which only the container says so.

    It looks for what FFmpeg's parsers look for. Decoders of other codecs refuse to begin elsewhere.

    Args:
        codec, extradata: see `entry_test`.
    """
    if codec == "h264":
        return partial(_is_entry_of_h264, extradata=extradata)
    if codec == "hevc":
        return partial(_is_entry_of_hevc, extradata=extradata)
    return entry_test(codec, extradata)


def _is_intra(packet: bytes) -> bool:
    """Returns whether a packet of MPEG-4 part 2 holds an I picture."""
    start = packet.find(b"\0\0\1\xb6")
    return start >= 0 and len(packet) > start + 4 and packet[start + 4] >> 6 == 0


def _is_whole(packet: bytes, extradata: bytes) -> bool:
    """Returns whether the frame of a packet of H.264 is right when decoding begins with it.

    With periodic intra refresh, each frame refreshes a part of the picture. Muxers flag the first frame of a period.
    After it, `recovery_frame_cnt` frames pass until all parts are right.
    """
    for unit in nal_units(packet, extradata, 4):
        kind = unit[0] & 31
        if kind in (SLICE, IDR_SLICE):
            break
        if kind == SEI and _recovery(unit) is False:
            return False
    return True


def _is_entry_of_h264(packet: bytes, extradata: bytes) -> bool:
    """Returns whether a packet has an IDR picture, or a recovery point of a whole picture before the first slice."""
    for unit in nal_units(packet, extradata, 4):
        kind = unit[0] & 31
        if kind in (SLICE, IDR_SLICE):
            return kind == IDR_SLICE
        if kind == SEI and (whole := _recovery(unit)) is not None:
            return whole
    return False


def _is_entry_of_hevc(packet: bytes, extradata: bytes) -> bool:
    """Returns whether a packet has a picture for random access."""
    return any(unit[0] >> 1 & 63 in _RANDOM_ACCESS for unit in nal_units(packet, extradata, 21))


def _recovery(unit: bytes) -> bool | None:
    """Returns whether an SEI unit has a recovery point whose `recovery_frame_cnt` is 0; None if it has none."""
    data = unit[1:].replace(b"\0\0\3", b"\0\0")
    at = 0
    while at + 2 < len(data):
        values = []
        for _ in ("type", "size"):
            value = 0
            while at < len(data) and data[at] == 255:
                value, at = value + 255, at + 1
            values.append(value + (data[at] if at < len(data) else 0))
            at += 1
        kind, size = values
        # An Exp-Golomb code of 0 is one bit, 1.
        if kind == _RECOVERY_POINT and at < len(data):
            return data[at] >= 128
        at += size
    return None
