"""VideoArguments: the arguments of a loader for cameras."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.schema import Schema
from gear_data.video.decoding.options import CACHE_BYTES, Backend, DecodeOptions

#: (H, W) of all cameras, or camera -> (H, W).
Resize = tuple[int, int] | Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class VideoArguments:
    """How a loader decodes cameras. `SequenceLoader` describes the arguments.

    Attributes:
        threads: threads of a process that decode; None: its cores, divided by the workers of its DataLoader.
        cache_bytes: bytes of decoded frames that a process keeps.
        backend: the library that decodes.
        resize: (H, W) of all cameras, or of each camera that is resized; None: no camera is resized.
    """

    threads: int | None = None
    cache_bytes: int = CACHE_BYTES
    backend: str = "auto"
    resize: Resize | None = field(default=None, hash=False)

    def options(self, size: tuple[int, int] | None) -> DecodeOptions:
        """Returns the options of a reader in this process.

        size: (H, W) of the frames; None: as in the file.
        """
        threads = self.threads
        if threads is None:
            worker = get_worker_info()
            threads = max(1, len(os.sched_getaffinity(0)) // (1 if worker is None else worker.num_workers))
        return DecodeOptions(threads, cast(Backend, self.backend), size, self.cache_bytes)


def check_video(threads: Any, cache_bytes: Any, backend: Any, resize: Any) -> VideoArguments:
    """Returns the arguments.

    Raises:
        InvalidArgumentError: an argument is out of its range.
        UnknownNameError: no such backend.
    """
    for name, value, low in (("decode_threads", threads, 1), ("video_cache", cache_bytes, 0)):
        wrong = isinstance(value, bool) or not isinstance(value, int | np.integer)
        if not (name == "decode_threads" and value is None) and (wrong or value < low):
            raise InvalidArgumentError(f"{name} must be an integer of at least {low}, not {value!r}")
    if isinstance(resize, Mapping):
        resize = {name: _size(value) for name, value in resize.items()}
    elif resize is not None:
        resize = _size(resize)
    threads = None if threads is None else int(threads)
    DecodeOptions(threads, backend, None, int(cache_bytes))
    return VideoArguments(threads, int(cache_bytes), backend, resize)


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
