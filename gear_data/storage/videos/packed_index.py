"""The index of one video file as bytes, as a cache keeps it.

A checksum (xxh3-128), the length of a text (uint32), the text, and the arrays of `Packets` one after another, all
little-endian. The text is JSON: the fields of `VideoFile`, and the number of packets.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, fields
from fractions import Fraction
from typing import Any

import numpy as np
import xxhash

from gear_data.video.file_index import NO_PACKETS, ColorProperties, Packets, VideoFile

_DIGEST_BYTES, _LENGTH_BYTES = 16, 4


def packed(video: VideoFile) -> bytes:
    """Returns an index as bytes.

    It calls no library that lets other threads run meanwhile: a thread that ends with the process may be here.
    """
    facts: dict[str, Any] = {
        each.name: getattr(video, each.name) for each in fields(VideoFile) if each.name != "packets"
    }
    facts["extradata"] = base64.b64encode(video.extradata).decode()
    facts["colors"] = asdict(video.colors)
    facts["time_base"] = [video.time_base.numerator, video.time_base.denominator]
    text = json.dumps({**facts, "packets": len(video.packets)}).encode()
    arrays = b"".join(getattr(video.packets, each.name).tobytes() for each in fields(Packets))
    data = len(text).to_bytes(_LENGTH_BYTES, "little") + text + arrays
    return xxhash.xxh3_128_digest(data) + data


def is_whole(data: bytes) -> bool:
    """Returns whether bytes are those that `packed` returned."""
    return data[:_DIGEST_BYTES] == xxhash.xxh3_128_digest(memoryview(data)[_DIGEST_BYTES:])


def unpacked(data: bytes) -> VideoFile:
    """Returns the index of bytes that are whole."""
    at = _DIGEST_BYTES + _LENGTH_BYTES
    end = at + int.from_bytes(data[_DIGEST_BYTES:at], "little")
    facts = json.loads(data[at:end])
    count, arrays = facts.pop("packets"), []
    for each in fields(Packets):
        arrays.append(np.frombuffer(data, getattr(NO_PACKETS, each.name).dtype, count, end))
        end += arrays[-1].nbytes
    facts["extradata"] = base64.b64decode(facts["extradata"])
    facts["colors"] = ColorProperties(**facts["colors"])
    facts["time_base"] = Fraction(*facts["time_base"])
    return VideoFile(**facts, packets=Packets(*arrays))
