"""CameraReaders: the readers of frames that a loader shares among its iterations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.loaders.arguments.options import VideoOptions
from gear_data.loaders.component import LoaderComponent
from gear_data.video.decoding.options import DecodeOptions

if TYPE_CHECKING:
    from gear_data.video.decoding.frame_reader import FrameReader


class CameraReaders:
    """Makes a reader for each dataset and options of decoding. Thread-safe.

    Args:
        components: the loader's datasets.
        options: how the loader decodes.
    """

    def __init__(self, components: Sequence[LoaderComponent], options: VideoOptions) -> None:
        self._components, self._options = components, options
        self._readers: dict[tuple[int, DecodeOptions], FrameReader] = {}
        self._lock: threading.Lock = fork_safe_lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=fork_safe_lock())

    def reader(self, number: int, camera: str) -> FrameReader:
        """Returns the reader of a dataset's camera, for this process.

        camera: its name in batches.
        """
        from gear_data.video.decoding.frame_reader import FrameReader

        component = self._components[number]
        wanted = component.request.schema[camera].shape[:2]
        stored = component.dataset.schema[component.stored_name(camera)].shape[:2]
        whole = stored == wanted or camera in component.letterboxed
        options = self._options.decoding(None if whole else (wanted[0], wanted[1]))
        if component.request.schema[camera].depth is not None:
            # The other libraries give RGB of 8 bits only.
            options = replace(options, backend="pyav")
        with self._lock:
            if (number, options) not in self._readers:
                videos = component.dataset.store.videos
                self._readers[number, options] = FrameReader(videos.index, videos.packets, options)
            return self._readers[number, options]
