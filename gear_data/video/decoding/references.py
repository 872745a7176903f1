"""Packets that a decoder needs for some frames of a group of pictures."""

from __future__ import annotations

from collections.abc import Container, Iterable

from gear_data.video.decoding.decoder import EncodedPacket
from gear_data.video.file_index import VideoFile
from gear_data.video.nal_units import DELIMITER, FILLER, SEI, SLICE, nal_units

#: Units of H.264 without a part of a picture, which no other packet needs.
_REMARKS = (SEI, DELIMITER, FILLER)


def needed_packets(video: VideoFile, packets: Iterable[EncodedPacket], wanted: Container[int]) -> list[EncodedPacket]:
    """Leaves out packets to which no other packet refers.

    Only H.264 says so of each packet, by `nal_ref_idc` (ITU-T H.264, 7.4.1). By default x264 makes half of the packets
    so (B frames). FFmpeg's `skip_frame=noref` leaves out the same ones.

    Args:
        video: the file.
        packets: of a group of pictures, in decoding order.
        wanted: presentation times of the wanted frames, whose packets stay.
    """
    if video.codec != "h264":
        return list(packets)
    return [each for each in packets if each.pts in wanted or _is_needed(bytes(each.data), video.extradata)]


def _is_needed(packet: bytes, extradata: bytes) -> bool:
    """Returns whether other packets of H.264 may refer to a packet, or need its parameters."""
    has_slice = False
    for unit in nal_units(packet, extradata, 4):
        kind, importance = unit[0] & 31, unit[0] >> 5 & 3
        if kind == SLICE and not importance:
            has_slice = True
        elif kind not in _REMARKS:
            return True
    return not has_slice
