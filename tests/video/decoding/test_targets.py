"""Frames as YUV, and the RGB that they become."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from gear_data.errors import InvalidArgumentError
from gear_data.video.decoding.decoder import NoPlanesError
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.decoding.targets import YuvFrames
from gear_data.video.decoding.yuv import YuvConversion, to_rgb
from tests.support.cameras.encoded import ENCODINGS, Frames, encode, local_packets, video_index

#: Files whose frames have no planes. PyAV 15 converts a file of BT.709 as one of BT.601.
WITHOUT_PLANES = {"h264, no subsampling", "av1, 10 bits"}
if not hasattr(av.VideoFrame, "color_primaries"):
    WITHOUT_PLANES.add("h264, full range")


@pytest.mark.parametrize("cache_bytes", [0, 1 << 28])
def test_planes_become_the_same_rgb(paths: dict[str, Path], expected: dict[str, Frames], cache_bytes: int) -> None:
    names = [name for name in ENCODINGS if name not in WITHOUT_PLANES]
    files = [paths[name] for name in names]
    reader = FrameReader(video_index(files), local_packets(files), DecodeOptions(2, cache_bytes=cache_bytes))
    file, frame = np.divmod(np.random.default_rng(1).permutation(len(names) * 26)[:80], 26)
    # One frame twice.
    file[1], frame[1] = file[0], frame[0]
    out = YuvFrames(np.full((80, 5000), 77, np.uint8), np.zeros((80, 6), np.int32))
    for _ in range(2):
        reader.read_planes(file, frame, out)
        for row, (number, each) in enumerate(zip(file.tolist(), frame.tolist(), strict=True)):
            rgb = to_rgb(out.planes[row, :4608], 48, 64, YuvConversion(*out.conversions[row].tolist()))
            assert np.array_equal(rgb, expected[names[number]][each]), (names[number], each)
    assert (out.planes[:, 4608:] == 77).all()


@pytest.mark.parametrize("name", sorted(WITHOUT_PLANES))
def test_frames_of_other_formats_have_no_planes(paths: dict[str, Path], name: str) -> None:
    reader = FrameReader(video_index([paths[name]]), local_packets([paths[name]]), DecodeOptions(1))
    out = YuvFrames(np.zeros((1, 4608), np.uint8), np.zeros((1, 6), np.int32))
    with pytest.raises(NoPlanesError):
        reader.read_planes(np.zeros(1, np.int64), np.zeros(1, np.int64), out)
    # The reader still gives RGB.
    rgb = np.zeros((1, 48, 64, 3), np.uint8)
    reader.read(np.zeros(1, np.int64), np.zeros(1, np.int64), rgb)
    assert rgb.any()


def test_rows_that_cannot_hold_planes_are_refused(paths: dict[str, Path]) -> None:
    for options, row_bytes in ((DecodeOptions(1), 4607), (DecodeOptions(1, size=(24, 32)), 5000)):
        reader = FrameReader(video_index([paths["mpeg4"]]), local_packets([paths["mpeg4"]]), options)
        out = YuvFrames(np.zeros((1, row_bytes), np.uint8), np.zeros((1, 6), np.int32))
        with pytest.raises(InvalidArgumentError, match="YUV"):
            reader.read_planes(np.zeros(1, np.int64), np.zeros(1, np.int64), out)


def test_the_index_says_which_files_have_planes(paths: dict[str, Path], tmp_path: Path) -> None:
    odd = tmp_path / "odd.mp4"
    encode(odd, ENCODINGS["vp9"], height=47, width=64, frames=2)
    files = {**paths, "odd": odd}
    index = video_index(list(files.values()))
    reader = FrameReader(index, local_packets(list(files.values())), DecodeOptions(1))
    for number, name in enumerate(files):
        assert reader.gives_planes(np.array([number])) == (name not in {*WITHOUT_PLANES, "odd"}), name
    assert reader.gives_planes(np.array([0, 1, 0, 2]))
    assert not reader.gives_planes(np.array([0, list(files).index("odd")]))
    scaled = FrameReader(index, reader.packets, DecodeOptions(1, size=(24, 32)))
    assert not scaled.gives_planes(np.array([0]))
