from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest

from gear_data.video.decoding.decoder import EncodedPacket
from gear_data.video.decoding.matroska import in_matroska
from tests.support.cameras.encoded import ENCODINGS, decoded, encode, index_of


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_group_in_a_container_decodes_to_the_same_frames(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.mp4"
    encode(path, ENCODINGS[name])
    video, data = index_of(path), memoryview(path.read_bytes())
    packets = [
        EncodedPacket(pts, data[position : position + size])
        for pts, position, size in zip(
            video.packets.pts.tolist(), video.packets.position.tolist(), video.packets.size.tolist(), strict=True
        )
    ]
    with av.open(io.BytesIO(in_matroska(video, packets))) as container:
        frames = list(container.decode(video=0))
    assert [frame.pts for frame in frames] == list(range(0, 260, 10))
    assert np.array_equal(np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), decoded(path))


def test_a_group_may_have_thousands_of_frames(tmp_path: Path) -> None:
    """A file of H.264 with periodic intra refresh has one key frame, so all its frames are one group."""
    path = tmp_path / "file.mp4"
    encode(path, ENCODINGS["mpeg4"])
    video = index_of(path)
    position, size = int(video.packets.position[0]), int(video.packets.size[0])
    data = memoryview(path.read_bytes())[position : position + size]
    # As with B frames: every second frame is shown before the frame that precedes it in the file.
    order = [0, *(number for first in range(1, 7001, 2) for number in (first + 1, first))]
    with av.open(io.BytesIO(in_matroska(video, [EncodedPacket(pts, data) for pts in order]))) as container:
        found = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert found == [10 * pts for pts in order]
