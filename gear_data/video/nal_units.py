"""NAL units: the parts of a packet of H.264 or HEVC."""

from __future__ import annotations

from collections.abc import Iterator

#: Types of H.264's units (ITU-T H.264, table 7-1).
SLICE, IDR_SLICE, SEI, DELIMITER, FILLER = 1, 5, 6, 9, 12


def nal_units(packet: bytes, extradata: bytes, place: int) -> Iterator[bytes]:
    """Yields the NAL units of a packet, which have at least one byte.

    Args:
        packet: the packet.
        extradata: the codec's parameters.
        place: the byte of `extradata` whose last two bits are the bytes of a unit's length, minus 1.
    """
    if not extradata.startswith(b"\1") or len(extradata) <= place:  # Annex B
        yield from (unit for unit in packet.split(b"\0\0\1") if unit)
        return
    size, first = (extradata[place] & 3) + 1, 0
    while first + size < len(packet):
        first, length = first + size, int.from_bytes(packet[first : first + size], "big")
        if length:
            yield packet[first : first + length]
        first += length
