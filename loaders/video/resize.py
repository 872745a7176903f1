"""Resize: the sizes to which a loader scales cameras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.schema import Schema

#: The third item of a size whose frames keep their proportions, between black bars.
LETTERBOX: Literal["letterbox"] = "letterbox"

#: (H, W), or (H, W, "letterbox").
Size = tuple[int, int] | tuple[int, int, Literal["letterbox"]]
#: The size of all cameras, or camera -> its size.
Resize = Size | Mapping[str, Size]


def check_resize(resize: Any) -> Resize | None:
    """Returns the argument `resize`; raises InvalidArgumentError if it is of another form."""
    if isinstance(resize, Mapping):
        return {name: _size(value) for name, value in resize.items()}
    return None if resize is None else _size(resize)


def _size(value: Any) -> Size:
    sides = value[:2] if isinstance(value, tuple | list) else ()
    if (
        len(sides) != 2
        or list(value[2:]) not in ([], [LETTERBOX])
        or any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in sides)
    ):
        raise InvalidArgumentError(
            f"resize must be (height, width) or (height, width, 'letterbox'), or map cameras to these, not {value!r}"
        )
    height, width = int(sides[0]), int(sides[1])
    return (height, width, LETTERBOX) if len(value) == 3 else (height, width)


def check_cameras(schemas: Iterable[Schema], resize: Resize | None) -> None:
    """Checks the cameras of a loader's datasets, and that those that `resize` names exist in a dataset.

    Raises:
        UnknownNameError: no dataset has a camera of this name.
        InvalidArgumentError: no dataset has a camera, or a camera is depth of two units.
    """
    cameras = [camera for schema in schemas for camera in schema.videos]
    known = sorted({camera.name for camera in cameras})
    units: dict[str, str] = {}
    for camera in cameras:
        if camera.depth is not None and units.setdefault(camera.name, camera.depth.unit) != camera.depth.unit:
            raise InvalidArgumentError(
                f"one dataset has depth in {units[camera.name]}, and another in {camera.depth.unit}",
                column=camera.name,
                hint="convert both with one --depth-unit, or give it another name with rename",
            )
    if resize is not None and not known:
        raise InvalidArgumentError(f"resize is {resize!r}, and the dataset has no cameras", hint="leave resize out")
    for name in resize if isinstance(resize, Mapping) else ():
        if name not in known:
            raise unknown_name("camera", name, known)


def camera_sizes(
    schema: Schema, resize: Resize | None, batch_format: BatchFormat, chosen: Mapping[str, Sequence[str]]
) -> dict[str, Size]:
    """Returns camera -> its size in batches, of the cameras that are scaled.

    Raises:
        InvalidArgumentError: one of them is depth, of which no mean of pixels has a meaning.

    Args:
        schema: the columns.
        resize: the loader's argument. The preset's `letterbox` says the size of cameras that it does not name.
        batch_format: the preset, with its options.
        chosen: key -> the columns, of which each window has one.
    """
    sizes: dict[str, Size] = {}
    if batch_format.letterbox:
        keys = {name: key for key, names in chosen.items() for name in names} | dict(batch_format.keys)
        sides = {name: batch_format.cameras[key] for name, key in keys.items() if key in batch_format.cameras}
        sizes = {name: (side, side, LETTERBOX) for name, side in sides.items()}
    if isinstance(resize, Mapping):
        sizes |= resize
    elif resize is not None:
        sizes = {each.name: resize for each in schema.videos}
    for each in schema.videos:
        if each.name in sizes and each.depth is not None:
            hint = _hint(schema, each.name, resize, batch_format)
            raise InvalidArgumentError("is depth, and depth is not scaled", column=each.name, hint=hint)
    return {each.name: sizes[each.name] for each in schema.videos if each.name in sizes}


def _hint(schema: Schema, depth: str, resize: Resize | None, batch_format: BatchFormat) -> str:
    """Returns what to do about a camera of depth, by its name, that would be scaled."""
    if resize is None or (isinstance(resize, Mapping) and depth not in resize):
        return (
            f"preset '{batch_format.name}' scales its cameras: leave this one out with preset_options={{'keys': "
            f"{{'{depth}': ''}}}}, and out of choose"
        )
    others = ", ".join(f"'{each.name}': (H, W)" for each in schema.videos if each.depth is None)
    return f"name the other cameras: resize={{{others}}}" if others else "leave resize out"


def resized(schema: Schema, sizes: Mapping[str, Size]) -> Schema:
    """Returns the schema with the cameras' shapes as batches have them."""
    videos = tuple(
        replace(each, shape=(*sizes[each.name][:2], each.shape[2])) if each.name in sizes else each
        for each in schema.videos
    )
    return Schema(schema.columns, videos)
