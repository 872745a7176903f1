"""Augmentations that copy pixels: random shifts and crops of images. And the loader's argument `augment`.

All steps of a window shift alike. The shift of a row is a function of the loader's seed, the step, and the row in the
global batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from gear_data.common.keywords import check_range, suggest_fields
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.decoding.pixel_changes import (
    ColorJitter,
    PixelChange,
    RandomResizedCrop,
    RandomRotation,
    set_size,
)
from gear_data.words import Channels


@suggest_fields
@dataclass(frozen=True)
class RandomShift:
    """Shifts images at random, and repeats their edges.

    An image is padded by `pad` pixels on each side, and a rectangle of the image's size is cut out (DrQ, Kostrikov et
    al., 2020; `p_aug` of OGBench).

    Attributes:
        pad: the largest shift in pixels, up, down, left and right.
        together: True: all image columns of a row shift alike, as by OGBench. False: each column has its own shift, as
            `next_observations` have in DrQ-v2.
        probability: the probability that a batch is augmented, as `p_aug` of OGBench.
        channels: the axis of channels, `first` [C, H, W] or `last` [H, W, C]; None: the shorter of the two axes.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    pad: int = 4
    together: bool = True
    probability: float = 1.0
    channels: Channels | None = None

    def __post_init__(self) -> None:
        check_range("pad", self.pad, 1)
        _check_channels(self.channels)
        if not isinstance(self.probability, int | float) or not 0 <= self.probability <= 1:
            raise InvalidArgumentError(f"probability is {self.probability!r}; it must be from 0 to 1")

    def cut(self, height: int, width: int) -> tuple[int, int, int]:
        """Returns (height, width) of the result, and the padding."""
        return height, width, self.pad

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON-able."""
        return {"name": "random_shift", "pad": self.pad, "together": self.together,
                "probability": self.probability, "channels": self.channels}  # fmt: skip


@suggest_fields
@dataclass(frozen=True)
class RandomCrop:
    """Cuts random rectangles out of images.

    Attributes:
        size: height and width of the result, or one number for both.
        pad: pixels by which an image is padded first, with its edges repeated.
        together, channels: see `RandomShift`.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    size: int | tuple[int, int]
    pad: int = 0
    together: bool = True
    channels: Channels | None = None
    probability = 1.0

    def __post_init__(self) -> None:
        set_size(self)
        check_range("pad", self.pad, 0)
        _check_channels(self.channels)

    def cut(self, height: int, width: int) -> tuple[int, int, int]:
        """Returns (height, width) of the result, and the padding.

        Raises:
            InvalidArgumentError: the result would be larger than the padded image.
        """
        target_height, target_width = self.size  # type: ignore[misc]
        if target_height > height + 2 * self.pad or target_width > width + 2 * self.pad:
            raise InvalidArgumentError(
                f"a crop of {target_height} x {target_width} does not fit images of {height} x {width} with pad="
                f"{self.pad}",
                hint="give a smaller size, or a larger pad",
            )
        return target_height, target_width, self.pad

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON-able."""
        return {"name": "random_crop", "size": list(self.size), "pad": self.pad,  # type: ignore[arg-type]
                "together": self.together, "channels": self.channels}  # fmt: skip


Augmentation: TypeAlias = "RandomShift | RandomCrop | RandomResizedCrop | RandomRotation | ColorJitter"
#: One augmentation, or several in the order in which they are applied.
Augmentations: TypeAlias = "Augmentation | Sequence[Augmentation]"
#: For all images, or key of the batch -> for its images.
Augment: TypeAlias = "Augmentations | Mapping[str, Augmentations] | None"


def check_augment(augment: Any) -> Augment:
    """Returns the argument `augment`.

    Raises:
        InvalidArgumentError: the argument is of another form.
    """
    if isinstance(augment, Mapping):
        return {key: _checked(each) for key, each in augment.items()}
    return None if augment is None else _checked(augment)


def _checked(augment: Any) -> Augmentations:
    each = in_order(augment)
    if not each or not all(isinstance(one, RandomShift | RandomCrop | PixelChange) for one in each):
        raise InvalidArgumentError(
            f"augment must be augmentations such as RandomShift(4), a list of them, or a mapping of keys to these, not "
            f"{shown(augment)}",
            hint='for example augment={"observations": [gear_data.RandomShift(4), gear_data.ColorJitter(hue=0.1)]}',
        )
    axes = {one.channels for one in each if not isinstance(one, PixelChange)} - {None}
    if len(axes) > 1:
        raise InvalidArgumentError(
            "augment has channels='first' and channels='last' for the same images", hint="name one axis"
        )
    return each if isinstance(augment, list | tuple) else each[0]


def in_order(augment: Any) -> tuple[Any, ...]:
    """Returns one augmentation, or several, as a tuple."""
    return tuple(augment) if isinstance(augment, list | tuple) else (augment,)


def augment_json(augment: Augment) -> Any:
    """Returns the argument `augment`, JSON-able."""
    if isinstance(augment, Mapping):
        return {key: augment_json(each) for key, each in augment.items()}
    if isinstance(augment, tuple):
        return [each.to_json() for each in augment]
    return None if augment is None else augment.to_json()  # type: ignore[union-attr]


def _check_channels(channels: str | None) -> None:
    if channels is not None and channels not in get_args(Channels):
        raise unknown_name("axis of channels", channels, get_args(Channels))
