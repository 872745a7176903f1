"""Resize: the sizes to which a loader scales cameras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.schema import Schema

#: (H, W) of all cameras, or camera -> (H, W).
Resize = tuple[int, int] | Mapping[str, tuple[int, int]]


def check_resize(resize: Any) -> Resize | None:
    """Returns the argument `resize`; raises InvalidArgumentError if it is of another form."""
    if isinstance(resize, Mapping):
        return {name: _size(value) for name, value in resize.items()}
    return None if resize is None else _size(resize)


def _size(value: Any) -> tuple[int, int]:
    if (
        not isinstance(value, tuple | list)
        or len(value) != 2
        or any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in value)
    ):
        raise InvalidArgumentError(f"resize must be (height, width), or map cameras to (height, width), not {value!r}")
    return int(value[0]), int(value[1])


def check_cameras(schemas: Iterable[Schema], resize: Resize | None) -> None:
    """Checks that the cameras that `resize` names exist in a dataset.

    Raises:
        UnknownNameError: no dataset has a camera of this name.
        InvalidArgumentError: no dataset has a camera.
    """
    known = sorted({camera.name for schema in schemas for camera in schema.videos})
    if resize is not None and not known:
        raise InvalidArgumentError(f"resize is {resize!r}, and the dataset has no cameras", hint="leave resize out")
    for name in resize if isinstance(resize, Mapping) else ():
        if name not in known:
            raise unknown_name("camera", name, known)


def resized(schema: Schema, resize: Resize | None) -> Schema:
    """Returns the schema with the cameras' shapes as batches have them."""
    if resize is None:
        return schema
    sizes = resize if isinstance(resize, Mapping) else dict.fromkeys((each.name for each in schema.videos), resize)
    videos = tuple(
        replace(each, shape=(*sizes[each.name], each.shape[2])) if each.name in sizes else each
        for each in schema.videos
    )
    return Schema(schema.columns, videos)
