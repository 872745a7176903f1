"""Encoded images: reading their headers, and decoding their pixels."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import PIL

#: Pillow's modes with 8 bits per channel -> number of channels. Their pixels are stored unchanged.
CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")

#: Pillow mode of a file -> mode of `CHANNELS` that holds its pixels without loss. Other modes have more than 8 bits per
#: channel, or colours outside RGB.
_LOSSLESS = {"1": "L", "P": "RGB"} | {mode: mode for mode in CHANNELS}

#: The end of a raw mode of Pillow with 16 bits per channel. `BGR;16` of BMP files has 16 bits per pixel.
_16_BITS = re.compile(";16[BLN]")


class UnreadableImage(Exception):
    """A damaged or unexpected image.

    The text continues a sentence that starts with "the image".
    """


class OversizedImage(UnreadableImage):
    """An image with more pixels than may be decoded."""


class UnsupportedImage(UnreadableImage):
    """An intact image whose pixels are not a uint8 array."""


@dataclass(frozen=True)
class ImageKind:
    """Properties that images must share to be rows of one array.

    Attributes:
        height: pixels.
        width: pixels.
        mode: Pillow mode, a key of `CHANNELS`.
    """

    height: int
    width: int
    mode: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (H, W, C). C is 1 for grey, as in `ImageDecoder` with channels last."""
        return self.height, self.width, CHANNELS[self.mode]

    def __str__(self) -> str:
        return f"{self.height} x {self.width} {self.mode}"


def looks_like_image(encoded: bytes) -> bool:
    """Returns whether bytes start with the signature of PNG, JPEG, WebP, BMP or GIF."""
    if encoded.startswith(b"RIFF"):
        return encoded[8:12] == b"WEBP"
    if encoded.startswith(b"BM"):
        return encoded[6:10] == bytes(4)  # reserved bytes of BMP; two letters are too common
    return encoded.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"))


def without_padding(encoded: bytes) -> bytes:
    """Returns a JPEG or PNG file without the zeros after its end; other bytes unchanged."""
    end = encoded.rstrip(b"\0")
    return end if end.endswith((b"\xff\xd9", b"IEND\xaeB`\x82")) else encoded


def byte_strings(rows: npt.NDArray[Any]) -> list[bytes]:
    """Returns byte strings that are padded with zeros to one size: rows of uint8, or a NumPy array of them.

    Images lose the zeros after their ends, and other byte strings of a NumPy array all zeros at their ends.
    """
    found = [row.tobytes() for row in rows.view(np.uint8).reshape(len(rows), rows[:1].nbytes)]
    is_numpy = rows.dtype.kind == "S"
    return [row.rstrip(b"\0") if is_numpy and not looks_like_image(row) else without_padding(row) for row in found]


def decode_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that Pillow raises for damaged images, and for images that would exhaust memory.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    return (
        OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error,
        PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning,
    )  # fmt: skip


@contextmanager
def open_image(encoded: bytes) -> Iterator[PIL.Image.Image]:
    """Opens a PNG, JPEG, WebP, BMP or GIF. Only its header is read.

    Raises:
        UnreadableImage: Pillow raised one of `decode_errors()`, here or inside the block.
        MissingExtraError: Pillow is not installed.
    """
    errors = decode_errors()
    try:
        with PIL.Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            yield image
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise OversizedImage(f"is too large: {error}") from error
    except PIL.UnidentifiedImageError as error:
        # Pillow's own message shows a memory address instead of a reason.
        raise UnreadableImage(f"is no PNG, JPEG, WebP, BMP or GIF ({len(encoded)} bytes)") from error
    except errors as error:
        raise UnreadableImage(f"is damaged: {error}") from error


def has_16_bits(image: PIL.Image.Image) -> bool:
    """Returns whether the file of an opened image has 16 bits per channel.

    Pillow reads such PNG and TIFF files in colour as their upper 8 bits. The tiles say what the file has.
    """
    return any(_16_BITS.search(str(tile[3])) for tile in getattr(image, "tile", ()))


def kind_of(image: PIL.Image.Image) -> ImageKind:
    """Returns the kind of an opened image.

    Raises:
        UnsupportedImage: the image has several frames, or its pixels do not fit 8-bit grey, RGB and alpha.
    """
    if getattr(image, "is_animated", False):
        raise UnsupportedImage("has several frames")
    if image.mode not in _LOSSLESS:
        raise UnsupportedImage(f"has Pillow's mode '{image.mode}', which does not fit uint8 channels without a loss")
    if has_16_bits(image):
        raise UnsupportedImage("has 16 bits per channel, which do not fit uint8 channels without a loss")
    if "transparency" in image.info:
        raise UnsupportedImage("has a transparent colour, which does not fit uint8 channels")
    return ImageKind(image.height, image.width, _LOSSLESS[image.mode])


def decode_into(out: npt.NDArray[np.uint8], encoded: bytes, kind: ImageKind) -> None:
    """Decodes an image into `out`, uint8 [H, W, C].

    Pixels are as stored: EXIF orientation is not applied.

    Raises:
        UnreadableImage: the image is damaged or of another kind. The kind is checked before pixels are decoded.
    """
    with open_image(encoded) as image:
        found = kind_of(image)
        if found != kind:
            raise UnreadableImage(f"is {found}, but the column began with {kind}")
        pixels = image if image.mode == kind.mode else image.convert(kind.mode)
        out[...] = np.asarray(pixels).reshape(kind.shape)
