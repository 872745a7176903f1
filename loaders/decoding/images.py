"""Decoders: callables that turn text or encoded images into tensors.

`ImageDecoder` is the decoder for images.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import PIL
from gear_data.common.images import CHANNELS, decode_errors, has_16_bits
from gear_data.common.keywords import suggest_fields
from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnsupportedColumnError

#: Called by one thread at a time with the texts (str) or bytes of all valid steps of a batch. Returns one value for
#: each step: an array [n, ...], a list of n numbers or arrays, or a mapping of names to such arrays or lists (as
#: HuggingFace's tokenizers do). It may raise a `GearError` with a `row`, an index of the list. The loader then raises
#: the error with the episode and the step of that row.
Decoder = Callable[[list[Any]], Any]

_CHOICES: dict[str, tuple[object, ...]] = {
    "dtype": ("uint8", "float32"),
    "channels": ("first", "last"),
    "mode": ("RGB", "L", None),
}
#: Pillow's modes of 8 bits a channel, which can become RGB or L. Other modes would lose bits.
_READABLE_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@suggest_fields
@dataclass(frozen=True)
class ImageDecoder:
    """Decodes images of any format that Pillow reads. Picklable.

    Attributes:
        dtype: `uint8`, or `float32` from 0 to 1.
        channels: `first`: [n, C, H, W]; `last`: [n, H, W, C].
        mode: `RGB` (C = 3) or `L` (grey, C = 1), to which images are converted. None keeps the images' mode, which must
            be the same for all.
        size: (H, W) to which images are scaled by Pillow's bilinear filter. Much larger JPEGs are first decoded at a
            half, a quarter or an eighth of their size. None keeps the images' size, which must be the same for all.

    Raises:
        InvalidArgumentError: an attribute has another value.
    """

    dtype: str = "uint8"
    channels: str = "first"
    mode: str | None = "RGB"
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                choices = ", ".join(repr(choice) for choice in known)
                raise InvalidArgumentError(
                    f"ImageDecoder: {name} must be one of {choices}, not {getattr(self, name)!r}"
                )
        size = self.size
        if size is not None and not (
            isinstance(size, tuple) and [type(n) for n in size] == [int, int] and min(size) > 0
        ):
            raise InvalidArgumentError(f"ImageDecoder: size must be (height, width), not {self.size!r}")

    def __call__(self, images: Sequence[bytes]) -> npt.NDArray[Any]:
        """Returns uint8 or float32 [n, C, H, W] or [n, H, W, C].

        Raises:
            CorruptSourceError: the bytes are not an image, or the image is damaged.
            UnsupportedColumnError: an image has more than 8 bits a channel, or `mode=None` and the image has a palette.
            InvalidArgumentError: images differ in size or channels, or an item is text. In each error, `row` is the
                index of the image.
        """
        whole = np.empty(0, np.uint8)
        for row, encoded in enumerate(images):
            if not isinstance(encoded, bytes):
                raise InvalidArgumentError(f"images must be bytes, not {type(encoded).__name__}", row=row)
            image = self._decode(encoded, row)
            if row == 0:
                whole = np.empty((len(images), *image.shape), np.uint8)
            if image.shape != whole.shape[1:]:
                raise InvalidArgumentError(
                    f"an image is {_described(image.shape, self)}, where the first of its batch is "
                    f"{_described(whole.shape[1:], self)}",
                    row=row,
                    hint="ImageDecoder(size=(height, width)) scales them; mode='RGB' makes channels equal",
                )
            whole[row] = image
        return np.divide(whole, np.float32(255)) if self.dtype == "float32" else whole

    def _decode(self, encoded: bytes, row: int) -> npt.NDArray[np.uint8]:
        """Decodes an image to [C, H, W] or [H, W, C]."""
        errors = decode_errors()
        try:
            with PIL.Image.open(io.BytesIO(encoded)) as image:
                is_deep = has_16_bits(image)
                if is_deep or image.mode not in (CHANNELS if self.mode is None else _READABLE_MODES):
                    bits = " with 16 bits per channel" if is_deep else ""
                    raise UnsupportedColumnError(
                        f"an image of Pillow's mode '{image.mode}'{bits} cannot become {self.mode or 'uint8 as it is'}",
                        row=row,
                        hint="decode such images with your own callable",
                    )
                if self.size is not None:
                    image.draft(self.mode, self.size[::-1])
                pixels = image if self.mode in (None, image.mode) else image.convert(self.mode)
                if self.size is not None:
                    pixels = pixels.resize(self.size[::-1], PIL.Image.Resampling.BILINEAR)
                array: npt.NDArray[np.uint8] = np.asarray(pixels)
        except UnsupportedColumnError:
            raise
        except errors as error:
            raise CorruptSourceError(f"{len(encoded)} bytes are not an image: {error}", row=row) from error
        array = array.reshape(*array.shape[:2], -1)
        return array.transpose(2, 0, 1) if self.channels == "first" else array


def _described(shape: tuple[int, ...], decoder: ImageDecoder) -> str:
    channels, height, width = shape if decoder.channels == "first" else (shape[2], *shape[:2])
    return f"{height} x {width} with {channels} channels"
