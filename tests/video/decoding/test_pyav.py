from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest

from gear_data.video.decoding.decoder import NoPlanesError, Picture
from gear_data.video.decoding.pyav import PyavDecoder, reorder_depth
from gear_data.video.decoding.yuv import yuv_bytes
from tests.support.cameras.encoded import ENCODINGS, encode, index_of, needs_colours


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


@needs_colours
def test_the_yuv_of_an_interlaced_frame_is_not_given(tmp_path: Path) -> None:
    """FFmpeg makes the RGB of such a frame of its two fields, each with its own lines of u and v."""
    path = tmp_path / "file.mp4"
    encode(path, ENCODINGS["h264"], frames=1)
    video = index_of(path)
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
    decoder, planes = PyavDecoder(video), np.empty(yuv_bytes(48, 64), np.uint8)
    decoder.write_planes(Picture(0, frame, 48, 64, 0), planes)
    names = ["format", "planes", "color_range", "colorspace", "color_primaries", "color_trc"]
    interlaced = SimpleNamespace(interlaced_frame=True, **{name: getattr(frame, name) for name in names})
    with pytest.raises(NoPlanesError, match="interlaced"):
        decoder.write_planes(Picture(0, interlaced, 48, 64, 0), planes)
