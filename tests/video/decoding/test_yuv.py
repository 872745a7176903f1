"""The arithmetic of YUV, against FFmpeg's scaler."""

from __future__ import annotations

import av
import numpy as np
import numpy.typing as npt
import pytest

from gear_data.video.decoding import pyav
from gear_data.video.decoding.yuv import YuvConversion, to_rgb, yuv_bytes, yuv_conversion
from gear_data.video.file_index import ColorProperties
from tests.support.cameras.encoded import needs_colours

pytestmark = needs_colours

SPACES = [1, 2, 4, 5, 6, 7, 9]


def random_planes(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, yuv_bytes(height, width), np.uint8)


def by_ffmpeg(planes: npt.NDArray[np.uint8], height: int, width: int, form: str, space: int, full: int) -> npt.NDArray:
    # PyAV lays the planes out itself.
    frame = av.VideoFrame.from_ndarray(planes.reshape(-1, width), form)
    frame.colorspace, frame.color_range = space, full
    return frame.to_ndarray(format="rgb24")


@pytest.mark.parametrize("full", [0, 1, 2])
@pytest.mark.parametrize("space", SPACES)
def test_the_arithmetic_is_ffmpegs(space: int, full: int) -> None:
    """All pairs of u and v, each with four of the 256 values of y."""
    planes = random_planes(512, 512, seed=space)
    pairs = np.arange(1 << 16)
    planes[512 * 512 :] = np.concatenate([pairs >> 8, pairs & 255])
    for form in ("yuv420p", "yuvj420p"):
        conversion = yuv_conversion(form, space, full)
        assert conversion is not None
        expected = by_ffmpeg(planes, 512, 512, form, space, full)
        assert np.array_equal(to_rgb(planes, 512, 512, conversion), expected)


@pytest.mark.parametrize("width", [2, 4, 6, 14, 18, 30, 34, 62, 66, 98, 130, 322])
def test_every_even_size_is_converted_alike(width: int) -> None:
    conversion = yuv_conversion("yuv420p", 5, 1)
    assert conversion is not None
    for height in (2, 6, 8):
        planes = random_planes(height, width)
        expected = by_ffmpeg(planes, height, width, "yuv420p", 5, 1)
        assert np.array_equal(to_rgb(planes, height, width, conversion), expected)


@pytest.mark.parametrize(
    ("pixel_format", "space"), [("yuv444p", 1), ("yuv420p10le", 1), ("nv12", 1), ("yuv420p", 8), ("yuv420p", 0)]
)
def test_other_frames_have_no_such_conversion(pixel_format: str, space: int) -> None:
    assert yuv_conversion(pixel_format, space, 1) is None


def test_a_machine_with_another_arithmetic_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    colors = ColorProperties(1, 5)
    assert pyav.exact_conversion("yuv420p", 50, colors) == yuv_conversion("yuv420p", 5, 1)
    assert pyav.exact_conversion("yuv420p", 51, colors) is None
    found = pyav.yuv_conversion("yuv420p", 5, 1)
    assert found is not None
    # One unit of 1 / 8192: a few numbers of the frame differ by 1.
    nearly = YuvConversion(*found[:2], found.v_red + 1, *found[3:])
    monkeypatch.setattr(pyav, "yuv_conversion", lambda *arguments: nearly)
    pyav.exact_conversion.cache_clear()
    assert pyav.exact_conversion("yuv420p", 50, colors) is None
    pyav.exact_conversion.cache_clear()
