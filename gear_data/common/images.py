"""Encoded images: what their headers say, and their pixels."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

#: Pillow's modes of 8 bits a channel whose channels are taken as they are.
CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}

#: What Pillow's readers raise for damaged files, and for those that would fill the memory.
DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error,
    Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")

#: Mode in the file -> the one its pixels are brought to without a loss. The others have more than 8 bits a channel, or
#: colours that RGB has not.
_LOSSLESS = {"1": "L", "P": "RGB"} | {mode: mode for mode in CHANNELS}


class UnreadableImage(Exception):
    """An encoded image that is damaged, or not what it should be; the text goes on after "the image"."""


class OversizedImage(UnreadableImage):
    """One of more pixels than anything is decoded of."""


class UnsupportedImage(UnreadableImage):
    """A sound one that is no uint8 array as it is."""


@dataclass(frozen=True)
class ImageKind:
    """What images must have in common to be rows of one array.

    Attributes:
        height, width: in pixels.
        mode: one of `CHANNELS`.
    """

    height: int
    width: int
    mode: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C); C is 1 for grey, as `ImageDecoder` has it with channels last."""
        return self.height, self.width, CHANNELS[self.mode]

    def __str__(self) -> str:
        return f"{self.height} x {self.width} {self.mode}"


def looks_like_image(encoded: bytes) -> bool:
    """Whether bytes begin as a PNG, JPEG, WebP, BMP or GIF does."""
    if encoded.startswith(b"RIFF"):
        return encoded[8:12] == b"WEBP"
    if encoded.startswith(b"BM"):
        return encoded[6:10] == bytes(4)  # reserved in a BMP; two letters alone may begin anything
    return encoded.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"))


@contextmanager
def open_image(encoded: bytes) -> Iterator[Image.Image]:
    """A PNG, JPEG, WebP, BMP or GIF of which only the header was read.

    Raises:
        UnreadableImage: whatever Pillow finds wrong with it, here or within the block.
    """
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise OversizedImage(f"is too large: {error}") from error
    except UnidentifiedImageError as error:
        # Its own text names an address in memory.
        raise UnreadableImage(f"is no PNG, JPEG, WebP, BMP or GIF ({len(encoded)} bytes)") from error
    except DECODE_ERRORS as error:
        raise UnreadableImage(f"is damaged: {error}") from error


def kind_of(image: Image.Image) -> ImageKind:
    """Raises UnsupportedImage: it has several frames, or pixels that do not fit 8 bits of grey, RGB and alpha."""
    if getattr(image, "is_animated", False):
        raise UnsupportedImage("has several frames")
    if image.mode not in _LOSSLESS:
        raise UnsupportedImage(f"has Pillow's mode '{image.mode}', which does not fit uint8 channels without a loss")
    if "transparency" in image.info:
        raise UnsupportedImage("has a transparent colour, which does not fit uint8 channels")
    return ImageKind(image.height, image.width, _LOSSLESS[image.mode])


def decode_into(out: npt.NDArray[np.uint8], encoded: bytes, kind: ImageKind) -> None:
    """Pixels of an image of this kind, into `out`: uint8 [H, W, C]. They are as stored: no EXIF orientation is applied.

    Raises:
        UnreadableImage: it is damaged, or of another kind; that is known before its pixels are decoded.
    """
    with open_image(encoded) as image:
        found = kind_of(image)
        if found != kind:
            raise UnreadableImage(f"is {found}, where the column began with {kind}")
        pixels = image if image.mode == kind.mode else image.convert(kind.mode)
        out[...] = np.asarray(pixels).reshape(kind.shape)
