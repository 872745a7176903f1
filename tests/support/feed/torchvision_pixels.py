"""torchvision's functional transforms, with the numbers that the loader's augmentations draw, from plain Python."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from gear_data import ColorJitter, RandomResizedCrop, RandomRotation
from tests.support.feed.reference import word64

BESIDE = Path(sys.prefix) / "beside"
_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
DOMAIN_AUGMENT_PIXELS = 15
#: An operation: name of torchvision's function, and its arguments.
Operation = tuple[str, tuple[Any, ...]]


@cache
def functional() -> Any:
    """Returns torchvision's functional transforms.

    `make test` installs torchvision in a folder that is not on Python's path. The index has its build for CUDA: beside
    torch for CPUs it cannot load its own operators. It then imports only if two of them, which no transform uses, are
    defined.
    """
    try:
        return _imported()
    except RuntimeError:
        for name in ("nms", "qnms"):
            _OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return _imported()


def _imported() -> Any:
    folder = BESIDE / "torchvision"
    spec = spec_from_file_location("torchvision", folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None and spec.loader is not None
    sys.modules["torchvision"] = package = module_from_spec(spec)
    try:
        spec.loader.exec_module(package)
        return import_module("torchvision.transforms.v2.functional")
    finally:
        # Packages that find it would import it.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def apply(images: torch.Tensor, operations: Sequence[Operation]) -> torch.Tensor:
    """Returns images [..., C, H, W] after torchvision's functions."""
    for name, arguments in operations:
        if name == "rotate":
            images = functional().rotate(images, *arguments, interpolation=functional().InterpolationMode.BILINEAR)
        else:
            images = getattr(functional(), name)(images, *arguments)
    return images


def augmented(images: np.ndarray, operations: Sequence[Operation]) -> np.ndarray:
    """Returns uint8 images [..., C, H, W] after torchvision's functions of float images: from 0 to 255, not rounded."""
    return apply(torch.from_numpy(images).float() / 255, operations).numpy() * 255


def drawn(augment: Sequence[Any], key: str, height: int, width: int, seed: int, step: int, row: int) -> list[Operation]:
    """Returns the operations for the images of a row of the global batch.

    A crop is drawn as in dlimp, a factor as in torchvision's `ColorJitter.get_params`, an angle as in `RandomRotation`.
    """
    found: list[Operation] = []
    for place, each in enumerate(augment):
        name = "" if each.together else key
        seeds = [
            word64(seed, DOMAIN_AUGMENT_PIXELS, 4 * place + n, xxhash.xxh32_intdigest(name.encode()), 0)
            for n in range(4)
        ]
        draws = [(word64(own, DOMAIN_AUGMENT_PIXELS, step, row, 0) >> 11) / 2**53 for own in seeds]
        if isinstance(each, RandomResizedCrop):
            area = each.scale[0] + (each.scale[1] - each.scale[0]) * draws[0]
            low, high = math.log(each.ratio[0]), math.log(each.ratio[1])
            ratio = math.exp(low + (high - low) * draws[1])
            tall = max(1, int(min(1.0, math.sqrt(area / ratio)) * height))
            wide = max(1, int(min(1.0, math.sqrt(area * ratio)) * width))
            top, left = int(draws[2] * (height - tall + 1)), int(draws[3] * (width - wide + 1))
            height, width = each.size or (height, width)
            found.append(("resized_crop", (top, left, tall, wide, [height, width])))
        elif isinstance(each, RandomRotation):
            found.append(("rotate", (each.degrees * (2 * draws[0] - 1),)))
        else:
            assert isinstance(each, ColorJitter)
            for draw, colour in zip(draws, ("brightness", "contrast", "saturation"), strict=False):
                if strength := getattr(each, colour):
                    low = max(0.0, 1 - strength)
                    found.append((f"adjust_{colour}", (low + (1 + strength - low) * draw,)))
            if each.hue:
                found.append(("adjust_hue", (each.hue * (2 * draws[3] - 1),)))
    return found


def check_rounded(found: np.ndarray, expected: np.ndarray) -> None:
    """Asserts that uint8 images are others, rounded. Values in the middle of two numbers may become either."""
    assert found.dtype == np.uint8 and found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) < 0.501
