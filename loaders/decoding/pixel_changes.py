"""Augmentations that compute pixels: random resized crops, rotations and changes of colour of uint8 images.

Why a draw is the same on every rank: `augmenter`. What the operations compute: `kernels/cpu/images`.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gear_data.common.keywords import check_range, suggest_fields
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu

Floats = npt.NDArray[np.float64]


class PixelChange(abc.ABC):
    """Computes the pixels of uint8 images, in one or several operations.

    Attributes:
        together: True: all images of a row that have it at the same place of their lists are changed alike, such as
            `observations` and `next_observations`. False: each key of the batch has its own draw.
    """

    together: bool
    #: Whether images need red, green and blue.
    changes_colours: ClassVar[bool] = False

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Returns height and width of the result. Most changes keep the size."""
        return height, width

    @abc.abstractmethod
    def kinds(self) -> list[int]:
        """Returns the operations, as `kernels/cpu/images` numbers them."""

    @abc.abstractmethod
    def numbers(self, draws: Floats, height: int, width: int) -> Floats:
        """Returns the numbers of the operations.

        Args:
            draws: float64 [B, 4], uniform from 0 to 1.
            height, width: of the images.

        Returns:
            float64 [B, operations, NUMBERS].
        """

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON-able."""


@suggest_fields
@dataclass(frozen=True)
class RandomResizedCrop(PixelChange):
    """Cuts random rectangles out of images, and scales them.

    The pixels are those of torchvision's `resized_crop`: bilinear, with antialiasing where the result is smaller.
    Octo has scales from 0.8 to 1 and ratios from 0.9 to 1.1 (`scripts/configs/octo_pretrain_config.py`), drawn as dlimp
    does; openpi has the scale 0.95 ** 2 and the ratio 1 (`preprocess_observation` in `openpi/models/model.py`).

    Attributes:
        scale: lowest and highest area of the rectangle, as shares of the image's. Drawn uniformly.
        ratio: lowest and highest ratio of its width to its height, relative to the image's: 1 keeps the image's. The
            logarithm is drawn uniformly. A side that would be longer than the image's is as long.
        size: height and width of the result, or one number for both. None: the image's.
        together: see `PixelChange`.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    scale: tuple[float, float] = (0.8, 1.0)
    ratio: tuple[float, float] = (0.9, 1.1)
    size: int | tuple[int, int] | None = None
    together: bool = False

    def __post_init__(self) -> None:
        _set_pair(self, "scale", 1.0)
        _set_pair(self, "ratio", math.inf)
        if self.size is not None:
            set_size(self)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Returns height and width of the result."""
        return (height, width) if self.size is None else self.size  # type: ignore[return-value]

    def kinds(self) -> list[int]:
        """Returns the operations; see `PixelChange`."""
        return [cpu.images.RESIZED_CROP]

    def numbers(self, draws: Floats, height: int, width: int) -> Floats:
        """Returns the numbers of the operations; see `PixelChange`."""
        low, high = (math.log(value) for value in self.ratio)
        areas = self.scale[0] + (self.scale[1] - self.scale[0]) * draws[:, 0]
        # NumPy's own `exp` has other last bits on other processors.
        ratios = np.array([math.exp(low + (high - low) * draw) for draw in draws[:, 1].tolist()])
        result = np.zeros((len(draws), 1, cpu.images.NUMBERS))
        sides = (height, np.sqrt(areas / ratios)), (width, np.sqrt(areas * ratios))
        for axis, (length, shares) in enumerate(sides):
            side = np.clip(np.floor(length * shares), 1, length)
            result[:, 0, axis] = np.floor(draws[:, 2 + axis] * (length - side + 1))
            result[:, 0, 2 + axis] = side
        return result

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON-able."""
        size = None if self.size is None else list(self.size)  # type: ignore[arg-type]
        return {"name": "random_resized_crop", "scale": list(self.scale), "ratio": list(self.ratio), "size": size,
                "together": self.together}  # fmt: skip


@suggest_fields
@dataclass(frozen=True)
class RandomRotation(PixelChange):
    """Rotates images around their centers.

    The pixels are those of torchvision's `rotate`, bilinear; outside the image they are black. openpi rotates by up to
    5 degrees, after the crop and before the colours (`preprocess_observation` in `openpi/models/model.py`).

    Attributes:
        degrees: the largest angle, in both directions; above 0 and at most 180. Drawn uniformly.
        together: see `PixelChange`.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    degrees: float = 5.0
    together: bool = False

    def __post_init__(self) -> None:
        _check_number("degrees", self.degrees, 180)
        if not self.degrees:
            raise InvalidArgumentError("degrees is 0, which rotates nothing", hint="leave RandomRotation out")

    def kinds(self) -> list[int]:
        """Returns the operations; see `PixelChange`."""
        return [cpu.images.ROTATION]

    def numbers(self, draws: Floats, height: int, width: int) -> Floats:
        """Returns the numbers of the operations; see `PixelChange`."""
        result = np.zeros((len(draws), 1, cpu.images.NUMBERS))
        for row, draw in enumerate(draws[:, 0].tolist()):
            angle = math.radians((2 * draw - 1) * self.degrees)
            result[row, 0, :2] = math.cos(angle), math.sin(angle)
        return result

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON-able."""
        return {"name": "random_rotation", "degrees": self.degrees, "together": self.together}


@suggest_fields
@dataclass(frozen=True)
class ColorJitter(PixelChange):
    """Changes brightness, contrast, saturation and hue of RGB images, in this order.

    The pixels are those of torchvision's `adjust_brightness`, `adjust_contrast`, `adjust_saturation` and `adjust_hue`.
    The order is that of Octo (`augment_order` in `scripts/configs/octo_pretrain_config.py`) and of openpi in PyTorch
    (`preprocess_observation_pytorch` in `openpi/models_pytorch/preprocessing_pytorch.py`), which leaves hues alone.
    Several in a list give other orders.

    Attributes:
        brightness: values are multiplied by a factor from 1 - brightness, but not below 0, to 1 + brightness. Drawn
            uniformly.
        contrast: the same for the distances of values from the mean of the gray image.
        saturation: the same for the distances of colours from their gray.
        hue: hues are turned by up to this share of the colour circle, in both directions; at most 0.5. Drawn uniformly.
        together: see `PixelChange`.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range, or nothing to change.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    together: bool = False
    changes_colours = True

    def __post_init__(self) -> None:
        for name in _COLOURS:
            _check_number(name, getattr(self, name), 0.5 if name == "hue" else math.inf)
        if not any(getattr(self, name) for name in _COLOURS):
            raise InvalidArgumentError(
                f"{', '.join(_COLOURS)} of ColorJitter are all 0", hint="give one of them, or leave ColorJitter out"
            )

    def kinds(self) -> list[int]:
        """Returns the operations; see `PixelChange`."""
        images = cpu.images
        each = images.BRIGHTNESS, images.CONTRAST, images.SATURATION, images.HUE
        return [kind for name, kind in zip(_COLOURS, each, strict=True) if getattr(self, name)]

    def numbers(self, draws: Floats, height: int, width: int) -> Floats:
        """Returns the numbers of the operations; see `PixelChange`."""
        result = np.zeros((len(draws), len(self.kinds()), cpu.images.NUMBERS))
        changed = [(place, name) for place, name in enumerate(_COLOURS) if getattr(self, name)]
        for operation, (place, name) in enumerate(changed):
            most = getattr(self, name)
            low, high = (-most, most) if name == "hue" else (max(0.0, 1 - most), 1 + most)
            result[:, operation, 0] = low + (high - low) * draws[:, place]
        return result

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON-able."""
        return {"name": "color_jitter", **{name: getattr(self, name) for name in _COLOURS}, "together": self.together}


_COLOURS = ("brightness", "contrast", "saturation", "hue")


def set_size(augmentation: Any) -> None:
    """Replaces the field `size` by (height, width).

    Raises:
        InvalidArgumentError: it is neither a number nor two.
    """
    size = augmentation.size
    pair = (size, size) if isinstance(size, int | np.integer) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidArgumentError(f"size must be a number or (height, width), not {size!r}")
    for value in pair:
        check_range("size", value, 1)
    object.__setattr__(augmentation, "size", (int(pair[0]), int(pair[1])))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _set_pair(augmentation: Any, name: str, high: float) -> None:
    """Replaces a field by (lowest, highest), above 0 and up to `high`."""
    pair = getattr(augmentation, name)
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(_is_number(value) and 0 < value <= high and math.isfinite(value) for value in pair)
        or pair[0] > pair[1]
    ):
        limit = "above 0" if high == math.inf else f"above 0 and at most {high:g}"
        raise InvalidArgumentError(f"{name} must be (lowest, highest), {limit}, not {pair!r}")
    object.__setattr__(augmentation, name, (float(pair[0]), float(pair[1])))


def _check_number(name: str, value: Any, high: float) -> None:
    """Raises InvalidArgumentError unless a value is a number from 0 to `high`."""
    if not _is_number(value) or not 0 <= value <= high or not math.isfinite(value):
        limit = "of at least 0" if high == math.inf else f"from 0 to {high:g}"
        raise InvalidArgumentError(f"{name} must be a number {limit}, not {value!r}")
