"""Augmenter: applies augmentations to the images of batches.

What is drawn for the images of a row is a function of the loader's seed, the step, the row in the global batch, and the
key of the batch. So batches are the same on any rank and any worker, and after resuming.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.kernels import cpu
from gear_data.loaders.decoding.augmentation import Augmentations, in_order
from gear_data.loaders.decoding.pixel_changes import PixelChange
from gear_data.selection.windows import Int64Array

#: Dtype and shape of an image; None: known once a batch is made.
ImageForm: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...]] | None"
#: Numbers that are drawn for each row and augmentation.
_DRAWS = 4


class Augmenter:
    """Applies augmentations to the images of batches.

    Args:
        augment: the loader's argument, not None.
        images: keys of the batch that hold images, in order -> their form.
        seed: seed of the loader.

    Raises:
        UnknownNameError: a key without images.
        InvalidArgumentError: the batch has no images, or an image has no place for a crop.
        UnsupportedColumnError: images that an augmentation cannot change.
    """

    def __init__(
        self, augment: Augmentations | Mapping[str, Augmentations], images: Mapping[str, ImageForm], seed: int
    ) -> None:
        if isinstance(augment, Mapping):
            for key in augment:
                if key not in images:
                    raise unknown_name("image key", key, list(images))
        elif not images:
            raise InvalidArgumentError(
                "augment= was given, and the batch has no images: no column of three axes, and no decoded column",
                hint="leave augment out, or name the column of images with columns=",
            )
        else:
            augment = dict.fromkeys(images, augment)
        self._chains = {key: _Chain(key, number, each, seed) for number, (key, each) in enumerate(augment.items())}
        for key, chain in self._chains.items():
            form = images[key]
            if form is not None:
                chain.check(*form)

    def __call__(self, step: int, row: int, batch: dict[str, Any]) -> None:
        """Replaces the images of a batch.

        Args:
            step: the batch's step.
            row: the row of the global batch at which the batch begins.
            batch: key -> array [B, ..., *image].

        Raises:
            UnsupportedColumnError: a list of arrays, or images that an augmentation cannot change.
        """
        for key, chain in self._chains.items():
            images = batch[key]
            if not isinstance(images, np.ndarray) or images.ndim < 4:
                shape = list(images.shape) if isinstance(images, np.ndarray) else "a list"
                raise UnsupportedColumnError(
                    f"cannot be augmented: the batch has {shape}, not an array [B, ..., *image]", column=key,
                    hint="leave the key out of augment=",
                )  # fmt: skip
            batch[key] = chain(step, row, images)


class _Chain:
    """The augmentations of a key, in order.

    Args:
        key: key of the batch.
        number: its number among the augmented keys.
        augment: the augmentations.
        seed: seed of the loader.
    """

    def __init__(self, key: str, number: int, augment: Augmentations, seed: int) -> None:
        self._key, self._number, self._seed = key, number, np.uint64(seed)
        self._each = in_order(augment)
        self._channels = next((each.channels for each in self._each if getattr(each, "channels", None)), None)
        word64, domain = cpu.random.word64, cpu.random.DOMAIN_AUGMENT_PIXELS
        #: Seeds of the numbers that are drawn for each augmentation: [augmentations][_DRAWS].
        self._seeds = [
            [
                np.uint64(word64(self._seed, domain, _DRAWS * place + draw, xxhash.xxh32_intdigest(name.encode()), 0))
                for draw in range(_DRAWS)
            ]
            for place, each in enumerate(self._each)
            for name in ("" if each.together else key,)
        ]

    def check(self, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        """Checks that all augmentations can be applied to images of this form.

        Raises:
            InvalidArgumentError: a crop that is larger than the image.
            UnsupportedColumnError: an augmentation computes pixels, and these are not uint8; or it changes colours, and
                there are not three.
        """
        last = self._is_last(shape)
        height, width, channels = _sides(shape, last)
        for each in self._each:
            if isinstance(each, PixelChange):
                self._check_pixels(each, dtype, channels)
                height, width = each.size_of(height, width)
            else:
                height, width, _ = each.cut(height, width)

    def __call__(self, step: int, row: int, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns images [B, ..., *image], augmented; see `Augmenter`."""
        self.check(images.dtype, images.shape[-3:])
        last = self._is_last(images.shape[-3:])  # a crop may make images narrower than they have channels
        for computed, places in groupby(
            range(len(self._each)), lambda place: isinstance(self._each[place], PixelChange)
        ):
            if computed:
                images = self._changed([*places], images, step, row, last)
            else:
                for place in places:
                    images = self._copied(place, images, step, row, last)
        return images

    def _is_last(self, shape: Sequence[int]) -> bool:
        return shape[-1] <= shape[0] if self._channels is None else self._channels == "last"

    def _check_pixels(self, each: PixelChange, dtype: np.dtype[Any], channels: int) -> None:
        name = type(each).__name__
        if dtype != np.uint8:
            raise UnsupportedColumnError(
                f"{name} changes images of uint8, and these are {dtype}", column=self._key,
                hint="leave the column out of normalize=, and let a decoder return uint8; a camera of preset 'lerobot' "
                "is uint8 with preset_options={'camera_frames': 'uint8'}",
            )  # fmt: skip
        if each.changes_colours and channels != 3:
            raise UnsupportedColumnError(
                f"{name} changes red, green and blue, and these images have {channels} channels", column=self._key,
                hint="name the keys of colour images: augment={key: ...}",
            )  # fmt: skip

    def _changed(
        self, places: Sequence[int], images: npt.NDArray[np.uint8], step: int, row: int, last: bool
    ) -> npt.NDArray[np.uint8]:
        """Computes the pixels of several augmentations in a row."""
        (rows, steps), (height, width, channels) = _counts(images), _sides(images.shape[-3:], last)
        parts, size = (1, channels) if last else (channels, 1)
        source = np.ascontiguousarray(images).reshape(rows, steps, parts, height, width * size)
        kinds: list[int] = []
        numbers: list[npt.NDArray[np.float64]] = []
        sizes: list[tuple[int, int]] = []
        for place in places:
            each = self._each[place]
            own = each.kinds()
            numbers.append(each.numbers(self._drawn(place, step, row, rows), height, width))
            height, width = each.size_of(height, width)
            kinds += own
            sizes += [(height, width)] * len(own)
        shape = (height, width, channels) if last else (channels, height, width)
        result = np.empty((*images.shape[:-3], *shape), np.uint8)
        target = result.reshape(rows, steps, parts, height, width * size)
        cpu.images.augment(source, size, np.array(kinds), np.concatenate(numbers, axis=1), np.array(sizes), target)
        return result

    def _drawn(self, place: int, step: int, row: int, rows: int) -> npt.NDArray[np.float64]:
        """Returns numbers from 0 to 1 for each row, float64 [B, _DRAWS]."""
        # The rows of all ranks before this one are drawn, too: row i has the same numbers on any rank.
        words = np.empty((_DRAWS, row + rows), np.int64)
        for seed, each in zip(self._seeds[place], words, strict=True):
            cpu.random.draw_words(seed, cpu.random.DOMAIN_AUGMENT_PIXELS, step, each)
        return np.asarray((words[:, row:].T.view(np.uint64) >> np.uint64(11)) * 2.0**-53, np.float64)

    def _copied(self, place: int, images: npt.NDArray[Any], step: int, row: int, last: bool) -> npt.NDArray[Any]:
        """Returns images that an augmentation shifts or cuts."""
        augmentation = self._each[place]
        stream = 0 if augmentation.together else 1 + self._number
        if not self._applies(augmentation.probability, step, stream, place):
            return images
        (rows, steps), (height, width, channels) = _counts(images), _sides(images.shape[-3:], last)
        new_height, new_width, pad = augmentation.cut(height, width)
        planes, pixel = (steps, images.dtype.itemsize * channels) if last else (steps * channels, images.dtype.itemsize)
        source = np.ascontiguousarray(images).view(np.uint8).reshape(rows, planes, height, width, pixel)
        image = (new_height, new_width, channels) if last else (channels, new_height, new_width)
        result = np.empty((*images.shape[:-3], *image), images.dtype)
        vertical, horizontal = height + 2 * pad - new_height + 1, width + 2 * pad - new_width + 1
        corners = self._corners(step, row, rows, stream, place, vertical * horizontal)
        tops, lefts = np.divmod(corners, horizontal)
        target = result.view(np.uint8).reshape(rows, planes, new_height, new_width, pixel)
        cpu.gather.crop(source, tops - pad, lefts - pad, target)
        return result

    def _applies(self, probability: float, step: int, stream: int, place: int) -> bool:
        if probability == 1:
            return True
        word = cpu.random.word64(self._seed, cpu.random.DOMAIN_AUGMENT_BATCH, step, stream, place)
        return bool(int(word) < probability * 2**64)

    def _corners(self, step: int, row: int, rows: int, stream: int, place: int, count: int) -> Int64Array:
        """Returns one of `count` corners for each row, int64 [rows]."""
        random, seed = cpu.random, self._seed
        if stream or place:
            seed = np.uint64(random.word64(seed, random.DOMAIN_AUGMENT, 0, stream, place))
        # The rows of all ranks before this one are drawn, too: row i has the same corner on any rank.
        corners = np.empty(row + rows, np.int64)
        random.draw_below(seed, random.DOMAIN_AUGMENT, step, count, corners)
        return corners[row:]


def _counts(images: npt.NDArray[Any]) -> tuple[int, int]:
    """Returns the rows of images [B, ..., *image], and the images of a row.

    A rank may have no row of a short batch: NumPy does not find the other number then.
    """
    return len(images), math.prod(images.shape[1:-3])


def _sides(shape: Sequence[int], last: bool) -> tuple[int, int, int]:
    """Returns height, width and channels of an image."""
    one, other, third = shape
    return (one, other, third) if last else (other, third, one)
