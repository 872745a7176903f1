"""CameraCollector: decodes the frames of a batch's windows into leased memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gear_data.collection.buffers import ALIGNMENT, Allocate, BufferPool, plain_memory
from gear_data.collection.output import CHANNELS_FIRST, Output, pixel_values
from gear_data.dataset.internals import store_of
from gear_data.kernels import cpu
from gear_data.loaders.builders.batch import RankRows
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.presets.transitions import INTERVALS
from gear_data.loaders.video.frame_steps import frame_steps
from gear_data.loaders.video.readers import CameraReaders
from gear_data.loaders.window_source import WindowSource
from gear_data.selection.windows import Int64Array, Windows


@dataclass(frozen=True)
class LookAhead:
    """The batches that a process builds after a batch.

    Attributes:
        source: samples their windows.
        rows: the rows of this rank.
        stride: distance of two of their steps.
        count: their number.
    """

    source: WindowSource
    rows: RankRows
    stride: int
    count: int

    def after(self, step: int) -> Iterator[Windows]:
        """Yields the windows of the batches after a step."""
        for number in range(1, self.count + 1):
            coming = step + number * self.stride
            windows = self.source.sample(coming, self.rows.batch_size)
            first, last = self.rows.bounds(coming, len(windows))
            yield windows[first:last]


@dataclass(frozen=True)
class FrameRequests:
    """Frames of one dataset's camera.

    Attributes:
        dataset: the number of the dataset.
        file, frame: int64 [n], see `FrameReader.read`.
        places: int64 [n], the position of each frame in the array of the batch, [B * width, ...].
    """

    dataset: int
    file: Int64Array
    frame: Int64Array
    places: Int64Array


class CameraCollector:
    """Adds cameras to batches. Safe to call from several threads.

    Args:
        components: number of a dataset in the loader -> the dataset. Their cameras are alike (`check_alike`).
        readers: of the loader's datasets.
        max_rows: the most windows of a batch.
        ahead: the batches that this process builds next; None: unknown.
        reuse, allocate: see `BufferPool`.
    """

    def __init__(
        self, components: dict[int, LoaderComponent], readers: CameraReaders, max_rows: int, *,
        ahead: LookAhead | None, reuse: bool, allocate: Allocate = plain_memory,
    ) -> None:  # fmt: skip
        self._outputs = {number: component.cameras for number, component in components.items()}
        self._stores = {number: store_of(component.dataset) for number, component in components.items()}
        self._readers, self._ahead = readers, ahead
        self._cameras = next(iter(self._outputs.values()))
        aligned = [-(-max_rows * output.row_bytes // ALIGNMENT) * ALIGNMENT for output in self._cameras]
        *self._offsets, size = itertools.accumulate(aligned, initial=0)
        self._pool = BufferPool(size, lambda memory: None, reuse=reuse, allocate=allocate)
        # Frames before their conversion never leave this process.
        converted = [max_rows * o.width * _pixels(o) for o in self._cameras if o.camera == CHANNELS_FIRST]
        self._scratch = BufferPool(max([1, *converted]), lambda memory: None, reuse=True)

    def add(self, step: int, windows: Windows, arrays: dict[str, Any]) -> tuple[int, int]:
        """Adds the cameras of a batch to its arrays.

        Args:
            step: the batch's step.
            windows: its windows.
            arrays: key -> array [B, ...] of the other columns.

        Returns:
            The bytes of all frames, and of those that are not `fill`.

        Raises:
            CorruptShardError, RemoteError, ClusterError, MissingExtraError: see `FrameReader.read`.
        """
        memory, _ = self._pool.lease()
        rows, padded, valid = len(windows), 0, 0
        coming = [] if self._ahead is None else list(self._ahead.after(step))
        for number, (output, offset) in enumerate(zip(self._cameras, self._offsets, strict=True)):
            frames = np.ndarray((rows * output.width, *output.shape), output.array_dtype, memory, offset)
            filled = self._fill(number, windows, arrays.get(INTERVALS), coming, frames)
            valid += filled * output.step_bytes
            padded += rows * output.row_bytes
            # The array keeps the lease of the buffer alive.
            arrays[output.key] = np.ndarray((rows, *output.array_shape), output.array_dtype, memory, offset)
        return padded, valid

    def _fill(
        self, number: int, windows: Windows, hops: Int64Array | None, coming: Sequence[Windows], frames: Any
    ) -> int:
        """Fills the array of a camera; returns the number of frames not `fill`.

        frames: the array, [B * width, ...].
        """
        padding = np.ones(len(frames), np.bool_)
        ahead = [request for each in coming for request in self._requests(number, each, None)]
        for wanted in self._requests(number, windows, hops):
            self._read(self._outputs[wanted.dataset][number], wanted, ahead, frames)
            padding[wanted.places] = False
        if padding.any():
            frames[padding] = self._cameras[number].fill
        return len(frames) - int(padding.sum())

    def _requests(self, number: int, windows: Windows, hops: Int64Array | None) -> Iterator[FrameRequests]:
        """Yields the frames of some windows, dataset by dataset.

        Args:
            number: of the camera.
            windows: the windows.
            hops: int64 [B], steps to each window's next state; None: 1.
        """
        source = np.broadcast_to(np.asarray(windows.source, np.int64), len(windows))
        hops = np.ones(len(windows), np.int64) if hops is None else hops
        for dataset, outputs in self._outputs.items():
            rows = np.flatnonzero(source == dataset)
            if not len(rows):
                continue
            output, store, own = outputs[number], self._stores[dataset], windows[rows]
            steps = frame_steps(output, own, store.lengths[own.episode_id], hops[rows])
            segments = store.videos.segments[output.source]
            row, column = np.nonzero(steps >= 0)
            episode = own.episode_id[row]
            frame = segments.first_frame[episode] + steps[row, column]
            yield FrameRequests(dataset, segments.file[episode], frame, rows[row] * output.width + column)

    def _read(self, output: Output, wanted: FrameRequests, ahead: Sequence[FrameRequests], frames: Any) -> None:
        """Decodes frames to their places. Each distinct frame is decoded once."""
        if not len(wanted.places):
            return
        reader = self._readers.reader(wanted.dataset, output.source)
        later = [each for each in ahead if each.dataset == wanted.dataset]
        hint = (np.concatenate([e.file for e in later]), np.concatenate([e.frame for e in later])) if later else None
        if output.camera != CHANNELS_FIRST:
            reader.read(wanted.file, wanted.frame, frames, wanted.places, hint)
            return
        requests = np.stack([wanted.file, wanted.frame])
        _, first, inverse = np.unique(requests, axis=1, return_index=True, return_inverse=True)
        channels, height, width = output.shape
        memory, _ = self._scratch.lease()
        decoded = np.ndarray((len(first), height, width, channels), np.uint8, memory)
        reader.read(wanted.file[first], wanted.frame[first], decoded, None, hint)
        table = pixel_values(output)
        bits = np.dtype(f"u{table.itemsize}")  # the kernel knows no bfloat16
        cpu.gather.channels_first(
            decoded.reshape(len(first), -1, channels), inverse.reshape(-1), wanted.places, table.view(bits),
            frames.view(bits).reshape(len(frames), channels, -1),
        )  # fmt: skip


def _pixels(output: Output) -> int:
    """Returns the bytes of a frame before its conversion."""
    return int(np.prod(output.shape))
