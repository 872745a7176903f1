"""Pictures: frames of episodes as small JPEG images inside a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import PIL
from gear_data.common.images import UnreadableImage, decode_errors, looks_like_image, open_image
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.episode import Episode
from gear_data.schema import ColumnSpec

#: Longest side of a picture in pixels.
_SIDE = 192
_QUALITY = 70
#: Bytes of frames that are decoded at once.
_DECODED_BYTES = 64 << 20
#: Smaller arrays of uint8 are no images.
_SMALLEST = 8
_MOST_CHANNELS = 4


def picture_columns(dataset: Dataset) -> list[ColumnSpec]:
    """Returns the cameras, the columns of uint8 images, and the columns of encoded images."""
    return [*dataset.schema.videos, *(spec for spec in dataset.schema if _is_picture(dataset, spec))]


def _is_picture(dataset: Dataset, spec: ColumnSpec) -> bool:
    if spec.dtype == "binary":
        return looks_like_image(bytes(dataset.values(spec.name, 0, 1)[0].as_py()))
    return spec.dtype == "uint8" and _layout(spec.shape) is not None


def _layout(shape: tuple[int, ...]) -> str | None:
    """Returns the order of the axes, `HW`, `HWC` or `CHW`; None if the shape is no image's."""
    if len(shape) == 2 and min(shape) >= _SMALLEST:
        return "HW"
    if len(shape) != 3:
        return None
    if shape[2] <= _MOST_CHANNELS and min(shape[:2]) >= _SMALLEST:
        return "HWC"
    return "CHW" if shape[0] <= _MOST_CHANNELS and min(shape[1:]) >= _SMALLEST else None


def encode_steps(dataset: Dataset, position: int, spec: ColumnSpec, steps: npt.NDArray[np.int64]) -> list[str | None]:
    """Returns the pictures of some steps of an episode as data URLs; None for a picture that cannot be read.

    Args:
        dataset: the dataset.
        position: position of the episode.
        spec: a column of `picture_columns`.
        steps: int64 [n], ascending.
    """
    if spec.dtype == "binary":
        values = dataset.values(spec.name, position, position + 1)
        return [_from_bytes(values[step].as_py()) for step in steps.tolist()]
    blocks = _decoded(dataset[position], spec, steps)
    if spec.depth is not None:
        stride = max(1, max(spec.shape[:2]) // _SIDE)
        blocks = iter([_shades(np.concatenate([block[:, ::stride, ::stride] for block in blocks]))])
    return [_encode(_image(frame, spec.shape)) for block in blocks for frame in block]


def _decoded(episode: Episode, spec: ColumnSpec, steps: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    """Yields the frames of some steps, in blocks of bounded memory."""
    frame_bytes = int(np.prod(spec.shape, dtype=np.int64)) * spec.numpy_dtype.itemsize
    count = max(1, _DECODED_BYTES // frame_bytes)
    for first in range(0, len(steps), count):
        yield episode[spec.name][steps[first : first + count]]


def _shades(depth: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Returns depth as uint8: the nearest of the pictures' pixels is black, the farthest white."""
    first, last = depth.min(), depth.max()
    shades: npt.NDArray[np.uint8] = ((depth - first) * (255 / max(last - first, 1e-6))).astype(np.uint8)
    return shades


def _from_bytes(encoded: bytes) -> str | None:
    errors: tuple[type[Exception], ...] = (UnreadableImage, *decode_errors())
    try:
        with open_image(encoded) as image:
            return _encode(image.convert("RGB"))
    except errors:
        return None


def _image(frame: npt.NDArray[Any], shape: tuple[int, ...]) -> PIL.Image.Image:
    """Returns a frame as an image. Of two channels the first is shown, of four channels the first three."""
    if _layout(shape) == "CHW":
        frame = np.moveaxis(frame, 0, -1)
    if frame.ndim == 3:
        frame = frame[..., :3] if frame.shape[2] >= 3 else frame[..., 0]
    return PIL.Image.fromarray(np.ascontiguousarray(frame))


def _encode(image: PIL.Image.Image) -> str:
    image.thumbnail((_SIDE, _SIDE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
