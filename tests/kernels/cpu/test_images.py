"""Operations on images against torchvision's functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from gear_data.kernels import cpu
from gear_data.kernels.cpu.images.geometry import triangle
from tests.support.feed.torchvision_pixels import BESIDE, Operation, apply, augmented, check_rounded

pytestmark = pytest.mark.skipif(not BESIDE.exists(), reason="not among the oldest packages")

KINDS = {
    "resized_crop": 0,
    "rotate": 1,
    "adjust_brightness": 2,
    "adjust_contrast": 3,
    "adjust_saturation": 4,
    "adjust_hue": 5,
}
JITTER: list[Operation] = [
    ("adjust_brightness", (1.13,)),
    ("adjust_contrast", (0.83,)),
    ("adjust_saturation", (1.27,)),
    ("adjust_hue", (0.07,)),
]


def pictures(height: int, width: int, channels: int = 3, count: int = 3) -> np.ndarray:
    """Images [count, C, H, W] with edges, even areas, and all values."""
    random = np.random.default_rng(height * 1000 + width)
    coarse = random.integers(0, 256, (count, channels, -(-height // 5), -(-width // 5)))
    fine = coarse.repeat(5, 2).repeat(5, 3)[..., :height, :width] + random.integers(
        -9, 10, (count, channels, height, width)
    )
    fine[:, :, : height // 3, : width // 3] = random.integers(0, 256, (count, 1, 1, 1))  # gray
    return np.clip(fine, 0, 255).astype(np.uint8)


def ours(images: np.ndarray, operations: list[Operation], *, last: bool) -> np.ndarray:
    """Returns images [n, C, H, W] after the kernel, which takes their channels first or last."""
    count, channels, height, width = images.shape
    kinds = np.array([KINDS[name] for name, _ in operations])
    numbers, sizes = np.zeros((1, len(kinds), cpu.images.NUMBERS)), np.zeros((len(kinds), 2), np.int64)
    high, wide = height, width
    for number, (name, arguments) in enumerate(operations):
        if name == "resized_crop":
            numbers[0, number], (high, wide) = arguments[:4], arguments[4]
        elif name == "rotate":
            angle = math.radians(arguments[0])
            numbers[0, number, :2] = math.cos(angle), math.sin(angle)
        else:
            numbers[0, number, 0] = arguments[0]
        sizes[number] = high, wide
    parts, size = (1, channels) if last else (channels, 1)
    source = np.ascontiguousarray(images.transpose(0, 2, 3, 1)) if last else images
    result = np.empty((1, count, parts, high, wide * size), np.uint8)
    cpu.images.augment(source.reshape(1, count, parts, height, width * size), size, kinds, numbers, sizes, result)
    return result.reshape(count, high, wide, channels).transpose(0, 3, 1, 2) if last else result[0]


def crop(*arguments: Any) -> Operation:
    return "resized_crop", (*arguments[:4], list(arguments[4:]))


CHAINS: dict[str, list[Operation]] = {
    "larger": [crop(3, 5, 31, 40, 48, 64)],
    "smaller": [crop(0, 2, 48, 60, 13, 7)],
    "wider and lower": [crop(10, 0, 38, 11, 9, 50)],
    "one pixel": [crop(20, 30, 1, 1, 6, 5)],
    "to one pixel": [crop(1, 2, 47, 60, 1, 1)],
    "the image": [crop(0, 0, 48, 64, 48, 64)],
    "turned left": [("rotate", (5.0,))],
    "turned right": [("rotate", (-131.0,))],
    **{f"{name} {number}": [(name, (number,))] for name in ("adjust_brightness", "adjust_contrast", "adjust_saturation")
       for number in (0.0, 0.61, 1.0, 1.73)},
    **{f"hue {number}": [("adjust_hue", (number,))] for number in (-0.5, -0.21, 0.0, 0.05, 0.5)},
    "Octo": [crop(3, 5, 43, 50, 48, 64), *JITTER],
    "Octo, wrist": JITTER,
    "openpi": [crop(2, 1, 45, 60, 48, 64), ("rotate", (-4.1,)), *JITTER[:3]],
    "two contrasts": [("adjust_contrast", (1.4,)), ("adjust_hue", (0.3,)), ("adjust_contrast", (0.7,))],
    "colours first": [*JITTER, ("rotate", (31.0,)), ("adjust_contrast", (1.2,)), crop(9, 8, 30, 30, 20, 61)],
    "larger, then turned": [crop(0, 0, 48, 64, 60, 90), ("rotate", (77.0,)), crop(5, 5, 50, 80, 48, 64)],
}  # fmt: skip


@pytest.mark.parametrize("operations", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_pixels_are_those_of_torchvision(operations: list[Operation], last: bool) -> None:
    images = pictures(48, 64)
    found = ours(images, operations, last=last)
    check_rounded(found, augmented(images, operations))
    if len(operations) == 1:  # torchvision rounds down after each change of uint8 images
        there = apply(torch.from_numpy(images), operations).numpy()
        assert np.abs(found.astype(np.int16) - there).max() <= 1
    # Only one image: the same pixels, and nothing is left of the one before.
    assert np.array_equal(ours(images[1:2], operations, last=last)[0], found[1])


@pytest.mark.parametrize("channels", [1, 2, 4, 9])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_any_number_of_channels_is_cut_and_turned(channels: int, last: bool) -> None:
    images = pictures(17, 12, channels)
    for operations in (
        [crop(1, 2, 13, 10, 17, 12)],
        [("rotate", (20.0,))],
        [crop(0, 0, 17, 12, 5, 6), ("rotate", (9.0,))],
    ):
        check_rounded(ours(images, operations, last=last), augmented(images, operations))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 7), (2, 3), (5, 1)])
def test_images_of_few_pixels(height: int, width: int) -> None:
    images = pictures(height, width)
    for operations in (
        [crop(0, 0, height, width, 4, 4)],
        [crop(0, 0, 1, 1, 2, 3), ("rotate", (45.0,)), *JITTER],
        JITTER,
    ):
        for last in (True, False):
            check_rounded(ours(images, operations, last=last), augmented(images, operations))


def test_black_stays_black() -> None:
    black = np.zeros((2, 3, 20, 30), np.uint8)
    for operations in CHAINS.values():
        changed = [each if each[0] != "resized_crop" else crop(0, 0, 20, 30, 20, 30) for each in operations]
        assert not ours(black, changed, last=True).any()


@pytest.mark.parametrize(("size", "length"), [(9, 33), (48, 176), (96, 352)])
def test_the_filter_has_places_for_all_its_pixels(size: int, length: int) -> None:
    """Compiled code would write beside the array, where Python raises an IndexError."""
    starts, weights = getattr(triangle, "py_func", triangle)(size, length)
    assert (starts >= 0).all() and (starts + len(weights) <= size).all()
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=1e-6)
