"""ImageDecoder: encoded images of a batch against the pixels they were made from."""

from __future__ import annotations

import io
import itertools
import pickle
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from gear_data import SequenceLoader
from gear_data.errors import CorruptSourceError, GearError, InvalidArgumentError, UnsupportedColumnError
from gear_data.loaders.decoding.images import ImageDecoder
from tests.support.feed import reference as ref
from tests.support.feed import variable as data
from tests.support.feed.batches import first_batch
from tests.support.feed.variable import IMAGE

EPISODES = data.make_episodes()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return data.convert(EPISODES, tmp_path_factory.mktemp("images") / "d")


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", ["first", "last"])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_images_against_their_pixels(dataset, dtype, channels, mode):
    decoder = ImageDecoder(dtype=dtype, channels=channels, mode=mode)
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    batch, windows = first_batch(
        dataset, batch_size=8, context=4, decoders={IMAGE: decoder}, preset_options={"side": "left"}
    )
    pixels = data.padded(data.cut(EPISODES, windows, "pixels"), 4, "left", np.int64)
    if mode == "L":
        # ITU-R 601-2, in Pillow's fixed point of 16 bits.
        grey = pixels @ [19595, 38470, 7471] + 0x8000 >> 16
        pixels = grey[..., None]
    expected = np.moveaxis(pixels, -1, 2) if channels == "first" else pixels
    assert batch[IMAGE].dtype == getattr(torch, dtype)
    if dtype == "uint8":
        assert np.array_equal(batch[IMAGE], expected)
    else:
        assert np.array_equal(batch[IMAGE], (expected.astype(np.float32) / np.float32(255)))


def test_images_are_scaled():
    """Checks the bilinear filter at half size.

    Along each axis it is a triangle of weights 1, 3, 3, 1.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12), dtype=np.uint8)
    (image,) = ImageDecoder(mode="L", size=(4, 6), channels="last")([data.image_bytes(pixels)])
    inner = np.empty((2, 4))
    for i, j in np.ndindex(2, 4):
        patch = pixels[2 * i + 1 : 2 * i + 5, 2 * j + 1 : 2 * j + 5].astype(float)
        inner[i, j] = np.array([1, 3, 3, 1]) @ patch @ [1, 3, 3, 1] / 64
    assert image.shape == (4, 6, 1)
    assert np.abs(image[1:3, 1:5, 0] - inner).max() <= 1


def test_a_large_jpeg_is_scaled():
    ramp = np.add.outer(np.arange(128), np.arange(128)).astype(np.uint8)
    (image,) = ImageDecoder(size=(16, 16), dtype="float32")([data.image_bytes(ramp, "JPEG")])
    assert image.shape == (3, 16, 16)
    expected = np.add.outer(np.arange(16) * 8 + 3.5, np.arange(16) * 8 + 3.5) / 255
    assert np.abs(image - expected)[:, 1:-1, 1:-1].max() < 0.02


def test_images_of_other_modes():
    rgba = np.random.default_rng(0).integers(0, 256, (3, 2, 4), dtype=np.uint8)
    images = [data.image_bytes(rgba)]
    assert np.array_equal(ImageDecoder(mode=None, channels="last")(images)[0], rgba)
    assert np.array_equal(ImageDecoder(channels="last")(images)[0], rgba[..., :3])
    file = io.BytesIO()
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    palette.putpalette([9, 8, 7, 1, 2, 3])
    palette.save(file, "PNG")
    assert ImageDecoder(channels="last")([file.getvalue()])[0].tolist() == [[[9, 8, 7], [1, 2, 3]]]
    with pytest.raises(UnsupportedColumnError, match="'P'"):
        ImageDecoder(mode=None)([file.getvalue()])
    with pytest.raises(UnsupportedColumnError, match="I;16"):
        ImageDecoder()([data.image_bytes(np.full((2, 2), 300, np.uint16))])


@pytest.mark.parametrize("mode", ["RGB", "L", None])
@pytest.mark.parametrize(("kind", "of_png"), [("RGB", 2), ("RGBA", 6)])
def test_colour_of_16_bits_is_refused(mode, kind, of_png):
    """Pillow reads such files as their upper 8 bits, and writes none: the header of a file of 8 bits is changed."""
    file = bytearray(data.image_bytes(np.zeros((4, 5, len(kind)), np.uint8)))
    file[24] = 16  # bits per channel; the byte after it is the kind of pixels
    assert file[25] == of_png
    file[29:33] = zlib.crc32(file[12:29]).to_bytes(4, "big")
    with pytest.raises(UnsupportedColumnError, match=f"'{kind}' with 16 bits per channel"):
        ImageDecoder(mode=mode)([bytes(file)])


@pytest.mark.parametrize(
    ("damage", "kind", "problem"),
    [
        (lambda image: b"", CorruptSourceError, "0 bytes are not an image"),
        (lambda image: b"not an image", CorruptSourceError, "12 bytes are not an image"),
        (lambda image: image[:-30], CorruptSourceError, "are not an image"),
        (lambda image: image[:50] + b"\xff" + image[51:], CorruptSourceError, "are not an image"),
        (
            lambda image: data.image_bytes(np.zeros((2, 3, 3), np.uint8)),
            InvalidArgumentError,
            "2 x 3 with 3 channels, where the first of its batch is 4 x 5 with 3 channels",
        ),
    ],
)
@pytest.mark.parametrize("channels", ["first", "last"])
def test_errors_of_bad_images_name_their_row(tmp_path, damage, kind, problem, channels):
    episodes = data.make_episodes([1, 3])
    episodes[1][IMAGE][2] = damage(episodes[1][IMAGE][2])
    ds = data.convert(episodes, tmp_path / "d")
    loader = SequenceLoader(ds, 2, sampler="fifo", decoders={IMAGE: ImageDecoder(channels=channels)})
    assert ref.as_windows(loader.windows(0))[0] == (0, 0, 1)
    with pytest.raises(kind, match=f"episode 1, step 2: .*{problem}") as caught:
        for _ in itertools.islice(loader, 4):
            pass
    assert isinstance(caught.value, GearError)
    assert (caught.value.column, caught.value.file) == (IMAGE, str(ds.path))


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float16"},
        {"channels": "middle"},
        {"mode": "CMYK"},
        {"size": 84},
        {"size": (84, 0)},
        {"size": (1.5, 2)},
    ],
)
def test_unknown_options_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        ImageDecoder(**options)
