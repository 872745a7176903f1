"""Frames as YUV to values, against the arithmetic in NumPy, which equals FFmpeg's scaler."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.kernels import cpu
from gear_data.video.decoding.yuv import to_rgb, yuv_conversion


@pytest.mark.parametrize(("form", "space", "full"), [("yuv420p", 2, 0), ("yuv420p", 1, 1), ("yuvj420p", 9, 2)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_values_are_those_of_rgb(form: str, space: int, full: int, dtype: str) -> None:
    """All pairs of u and v, each with four of the 256 values of y."""
    planes = np.random.default_rng(space).integers(0, 256, 512 * 512 * 3 // 2, np.uint8)
    pairs = np.arange(1 << 16)
    planes[512 * 512 :] = np.concatenate([pairs >> 8, pairs & 255])
    conversion = yuv_conversion(form, space, full)
    assert conversion is not None
    rgb = to_rgb(planes, 512, 512, conversion).transpose(2, 0, 1)
    table = np.random.default_rng(1).permuted(np.tile(np.arange(256, dtype=dtype), (3, 1)), axis=1)
    target = np.zeros((3, 512, 512), dtype)
    cpu.images.planes_to_values(planes, np.array(conversion), table, False, target)
    np.testing.assert_array_equal(target, table[np.arange(3)[:, None, None], rgb])
    cpu.images.planes_to_values(planes, np.array(conversion), table, True, target)
    np.testing.assert_array_equal(target, rgb)


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (6, 34), (2, 322)])
def test_every_even_size(size: tuple[int, int]) -> None:
    planes = np.random.default_rng(0).integers(0, 256, size[0] * size[1] * 3 // 2, np.uint8)
    conversion = yuv_conversion("yuv420p", 5, 1)
    assert conversion is not None
    target = np.zeros((3, *size), np.uint8)
    cpu.images.planes_to_values(planes, np.array(conversion), np.zeros((3, 256), np.uint8), True, target)
    np.testing.assert_array_equal(target, to_rgb(planes, *size, conversion).transpose(2, 0, 1))
