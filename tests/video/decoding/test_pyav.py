from __future__ import annotations

from pathlib import Path

import av
import pytest

from gear_data.video.decoding.pyav import reorder_depth
from tests.support.cameras.encoded import ENCODINGS, encode


@pytest.mark.skipif(
    not hasattr(av.VideoCodecContext, "reorder_depth"), reason="this PyAV does not say how far a stream reorders frames"
)
@pytest.mark.parametrize("name", ["h264", "h264 with B frames", "h264, open groups"])
def test_the_reorder_depth_is_what_the_encoder_wrote_into_the_stream(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.mp4"
    encode(path, ENCODINGS[name])
    with av.open(str(path)) as container:
        pts = [packet.pts for packet in container.demux(video=0) if packet.size]
    with av.open(str(path)) as container:
        for _ in container.decode(video=0):
            pass
        assert container.streams.video[0].codec_context.reorder_depth == reorder_depth(pts)


@pytest.mark.parametrize(
    ("pts", "depth"), [([], 0), ([5], 0), ([0, 1, 2], 0), ([0, 2, 1, 4, 3], 1), ([0, 4, 2, 1, 3], 2)]
)
def test_the_reorder_depth_counts_frames_that_wait(pts: list[int], depth: int) -> None:
    assert reorder_depth(pts) == depth
