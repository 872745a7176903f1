"""Augmentations: random shifts and crops of images.

All steps of a window shift alike. The shift of a row is a function of the loader's seed, the step, and the row in the
global batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from gear_data.common.keywords import check_range, suggest_fields
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array
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
        pair = (self.size, self.size) if isinstance(self.size, int | np.integer) else self.size
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgumentError(f"size must be a number or (height, width), not {self.size!r}")
        for value in pair:
            check_range("size", value, 1)
        object.__setattr__(self, "size", (int(pair[0]), int(pair[1])))
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


Augmentation = RandomShift | RandomCrop
#: One augmentation for all images, or key of the batch -> augmentation.
Augment = Augmentation | Mapping[str, Augmentation] | None


def check_augment(augment: Any) -> Augment:
    """Returns the argument `augment`.

    Raises:
        InvalidArgumentError: the argument is of another form.
    """
    each = list(augment.values()) if isinstance(augment, Mapping) else [] if augment is None else [augment]
    if not all(isinstance(one, Augmentation) for one in each):
        raise InvalidArgumentError(
            f"augment must be RandomShift(...), RandomCrop(...), or a mapping of keys to them, not {augment!r}",
            hint='for example augment={"observations": gear_data.RandomShift(4)}',
        )
    return dict(augment) if isinstance(augment, Mapping) else augment


def augment_json(augment: Augment) -> Any:
    """Returns the argument `augment`, JSON-able."""
    if isinstance(augment, Mapping):
        return {key: each.to_json() for key, each in augment.items()}
    return None if augment is None else augment.to_json()


class Augmenter:
    """Applies augmentations to the images of batches.

    Args:
        augment: the loader's argument, not None.
        images: keys of the batch that hold images, in order.
        seed: seed of the loader.

    Raises:
        UnknownNameError: a key without images.
        InvalidArgumentError: the batch has no images.
    """

    def __init__(self, augment: Augmentation | Mapping[str, Augmentation], images: Sequence[str], seed: int) -> None:
        if isinstance(augment, Mapping):
            for key in augment:
                if key not in images:
                    raise unknown_name("image key", key, images)
            self._augmentations = dict(augment)
        elif not images:
            raise InvalidArgumentError(
                "augment= was given, and the batch has no images: no column of three axes, and no decoded column",
                hint="leave augment out, or name the column of images with columns=",
            )
        else:
            self._augmentations = dict.fromkeys(images, augment)
        self._seed = seed

    def __call__(self, step: int, row: int, batch: dict[str, Any]) -> None:
        """Replaces the images of a batch.

        Args:
            step: the batch's step.
            row: the row of the global batch at which the batch begins.
            batch: key -> array [B, ..., *image].

        Raises:
            UnsupportedColumnError: a list of arrays, or arrays without an image's axes.
        """
        for number, (key, augmentation) in enumerate(self._augmentations.items()):
            images = batch[key]
            if not isinstance(images, np.ndarray) or images.ndim < 4:
                shape = list(images.shape) if isinstance(images, np.ndarray) else "a list"
                raise UnsupportedColumnError(
                    f"cannot be augmented: the batch has {shape}, not an array [B, ..., *image]", column=key,
                    hint="leave the key out of augment=",
                )  # fmt: skip
            stream = 0 if augmentation.together else 1 + number
            if self._augments(augmentation.probability, step, stream):
                batch[key] = self._cut(augmentation, images, step, row, stream)

    def _augments(self, probability: float, step: int, stream: int) -> bool:
        if probability == 1:
            return True
        word = cpu.random.word64(np.uint64(self._seed), cpu.random.DOMAIN_AUGMENT_BATCH, step, stream, 0)
        return bool(int(word) < probability * 2**64)

    def _cut(
        self, augmentation: Augmentation, images: npt.NDArray[Any], step: int, row: int, stream: int
    ) -> npt.NDArray[Any]:
        last = _channels_last(augmentation.channels, images.shape[-3:])
        height, width = images.shape[-3:-1] if last else images.shape[-2:]
        new_height, new_width, pad = augmentation.cut(height, width)
        pixel = images.dtype.itemsize * (images.shape[-1] if last else 1)
        rows = len(images)
        source = np.ascontiguousarray(images).view(np.uint8).reshape(rows, -1, height, width, pixel)
        image = (new_height, new_width, images.shape[-1]) if last else (images.shape[-3], new_height, new_width)
        result = np.empty((*images.shape[:-3], *image), images.dtype)
        vertical, horizontal = height + 2 * pad - new_height + 1, width + 2 * pad - new_width + 1
        places = self._places(step, row, rows, stream, vertical * horizontal)
        tops, lefts = np.divmod(places, horizontal)
        target = result.view(np.uint8).reshape(rows, -1, new_height, new_width, pixel)
        cpu.gather.crop(source, tops - pad, lefts - pad, target)
        return result

    def _places(self, step: int, row: int, rows: int, stream: int, count: int) -> Int64Array:
        """Returns one of `count` places for each row, int64 [rows]."""
        random, seed = cpu.random, np.uint64(self._seed)
        if stream:
            seed = np.uint64(random.word64(seed, random.DOMAIN_AUGMENT, 0, stream, 0))
        # The rows of all ranks before this one are drawn, too: row i has the same place on any rank.
        places = np.empty(row + rows, np.int64)
        random.draw_below(seed, random.DOMAIN_AUGMENT, step, count, places)
        return places[row:]


def _channels_last(channels: str | None, shape: tuple[int, ...]) -> bool:
    return shape[-1] <= shape[0] if channels is None else channels == "last"


def _check_channels(channels: str | None) -> None:
    if channels is not None and channels not in get_args(Channels):
        raise unknown_name("axis of channels", channels, get_args(Channels))
