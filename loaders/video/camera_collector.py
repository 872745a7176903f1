"""CameraCollector: decodes the frames of a batch's windows into leased memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import Allocate, BufferPool, plain_memory
from gear_data.collection.output import CHANNELS_FIRST, DEPTH, Output, Padding
from gear_data.errors import GearError
from gear_data.loaders.builders.batch import RankRows
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.presets.transitions import INTERVALS
from gear_data.loaders.video.letterbox import LetterboxFrames
from gear_data.loaders.video.planar_frames import PlanarFrames, PlanarPool
from gear_data.loaders.video.readers import CameraReaders
from gear_data.loaders.video.value_frames import ValueFrames, depth_frames
from gear_data.loaders.window_source import WindowSource
from gear_data.selection.windows import Int64Array, Windows
from gear_data.video.decoding.decoder import NoPlanesError
from gear_data.video.decoding.jobs import frame_ranges
from gear_data.video.decoding.targets import FrameTarget, RgbFrames, YuvFrames
from gear_data.video.packet_bytes import ByteRange, FetchingPackets
from gear_data.video.segments import VideoSegments

_log = logging.getLogger(__name__)


#: Batches after a batch whose bytes are fetched from URLs, as far as a limit of bytes allows it.
_FETCHED_BATCHES = 32
#: Most batches of them with files whose indexes are not on this machine yet.
_INDEXED_BATCHES = 4


@dataclass(frozen=True)
class LookAhead:
    """The batches that a process builds after a batch.

    Attributes:
        source: samples their windows.
        rows: the rows of this rank.
        stride: distance of two of their steps.
        count: the batches that are built soon: frames that they want of a group that is decoded now are kept.
    """

    source: WindowSource
    rows: RankRows
    stride: int
    count: int

    def after(self, step: int, count: int) -> Iterator[tuple[int, Windows]]:
        """Yields the next batches after a step, also of the next pass: their steps, and their windows.

        It ends where the sampler fails, as one of the user may after a pass. The batch itself raises the error.
        """
        for coming in range(step + self.stride, step + count * self.stride + 1, self.stride):
            try:
                windows = self.source.sample(coming, self.rows.batch_size)
            except Exception:
                return
            first, last = self.rows.bounds(coming, len(windows))
            yield coming, windows[first:last]


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

    def distinct(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns file and frame of the distinct requests, and each request's place."""
        requests = np.stack([self.file, self.frame])
        _, first, inverse = np.unique(requests, axis=1, return_index=True, return_inverse=True)
        return self.file[first], self.frame[first], inverse.reshape(-1)


class CameraCollector:
    """Adds cameras to batches. Safe to call from several threads.

    A camera is added as its array, or as `PlanarFrames` from which a GPU makes the same array.

    Args:
        components: number of a dataset in the loader -> the dataset. Their cameras are alike (`check_alike`).
        readers: of the loader's datasets.
        max_rows: the most windows of a batch.
        seed: seed of the loader.
        ahead: the batches that this process builds next; None: unknown.
        planar: whether cameras may be added as `PlanarFrames`, where their files allow it.
        reuse, allocate: see `BufferPool`.
    """

    def __init__(
        self, components: dict[int, LoaderComponent], readers: CameraReaders, max_rows: int, seed: int, *,
        ahead: LookAhead | None, planar: bool, reuse: bool, allocate: Allocate = plain_memory,
    ) -> None:  # fmt: skip
        self._outputs = {number: component.cameras for number, component in components.items()}
        self._stores = {number: component.dataset.store for number, component in components.items()}
        self._components = components
        self._readers, self._ahead, self._seed = readers, ahead, seed
        of_cameras = zip(*self._outputs.values(), strict=True)
        #: For each camera, its output in the first dataset that has it; else in the first dataset.
        self._cameras = [next((o for o in of_camera if not o.absent), of_camera[0]) for of_camera in of_cameras]
        # Camera that is read for choices only -> the choices, and which of their columns it is.
        first = next(iter(components.values()))
        self._choices = {
            camera.key: [
                (choice, choice.arrays[choice.key].index(camera.key))
                for choice in first.choices
                if camera.key in choice.arrays.get(choice.key, ())
            ]
            for camera in self._cameras
            if camera.key in first.hidden
        }
        self._pools = [
            BufferPool(max_rows * output.row_bytes, lambda memory: None, reuse=reuse, allocate=allocate)
            for output in self._cameras
        ]
        #: For each camera, the memory of its frames as YUV; None: its array is made here.
        self._planar = [
            PlanarPool(output, max_rows, reuse=reuse, allocate=allocate)
            if planar and self._has_planes(number)
            else None
            for number, output in enumerate(self._cameras)
        ]

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
        rows, padded, valid = len(windows), 0, 0
        coming = [] if self._ahead is None else list(self._ahead.after(step, self._ahead.count))
        requests = [
            (
                [each for each in self._requests(number, step, windows, arrays.get(INTERVALS)) if len(each.places)],
                [request for each in coming for request in self._requests(number, *each, None)],
            )
            for number in range(len(self._cameras))
        ]
        self._fetch(step, [each for now, _ in requests for each in now])
        for number, (output, (wanted, ahead)) in enumerate(zip(self._cameras, requests, strict=True)):
            arrays[output.key] = self._array(number, windows, wanted, ahead)
            valid += sum(len(each.places) for each in wanted) * output.step_bytes
            padded += rows * output.row_bytes
        return padded, valid

    def _fetch(self, step: int, wanted: Sequence[FrameRequests]) -> None:
        """Fetches the bytes of all cameras of a batch, if they are at URLs, and begins to fetch those of later batches.

        Args:
            step: the batch's step.
            wanted: its frames.
        """
        for dataset, store in self._stores.items():
            packets = store.videos.packets
            if isinstance(packets, FetchingPackets):
                index, own = store.videos.index, [each for each in wanted if each.dataset == dataset]
                index.load(np.concatenate([np.empty(0, np.int64), *(each.file for each in own)]))
                now = [found for each in own for found in frame_ranges(index, each.file, each.frame)]
                packets.fetch(now, partial(self._later_ranges, step, dataset))

    def _later_ranges(self, step: int, dataset: int) -> Iterator[list[ByteRange]]:
        """Yields the ranges of bytes of a dataset that each of the batches after a step needs.

        Those of a file whose index is not on this machine are left out. Its index is read meanwhile.
        """
        index, unindexed = self._stores[dataset].videos.index, 0
        for coming in () if self._ahead is None else self._ahead.after(step, _FETCHED_BATCHES):
            requests = [each for number in range(len(self._cameras)) for each in self._requests(number, *coming, None)]
            own = [each for each in requests if each.dataset == dataset]
            known = [index.expect(each.file) for each in own]
            found = []
            for each, here in zip(own, known, strict=True):
                # The batch itself raises the error of an index.
                with suppress(GearError):
                    found += frame_ranges(index, each.file[here], each.frame[here])
            yield found
            unindexed += not all(here.all() for here in known)
            if unindexed == _INDEXED_BATCHES:
                return

    def _segments(self, dataset: int, camera: str) -> VideoSegments:
        return self._stores[dataset].videos.segments[self._components[dataset].stored_name(camera)]

    def _has_planes(self, number: int) -> bool:
        """Returns whether the files of a camera are such that it can be added as YUV."""
        fill = self._cameras[number].fill
        if (
            self._cameras[number].absent
            or self._cameras[number].camera in DEPTH.values()
            or np.ndim(fill)
            or any(not np.array_equal(outputs[number].fill, fill) for outputs in self._outputs.values())
        ):
            return False
        # The GPU has one table of values for all channels, and no table of bytes.
        camera = self._cameras[number]
        if (camera.camera, camera.dtype) == (CHANNELS_FIRST, "uint8"):
            return False
        if any(outputs[number].mean is not None for outputs in self._outputs.values()):
            return False
        for dataset, outputs in self._outputs.items():
            if outputs[number].absent:
                continue
            camera = outputs[number].source
            files = self._segments(dataset, camera).file
            if camera in self._components[dataset].letterboxed:
                return False
            if not self._readers.reader(dataset, camera).gives_planes(files):
                return False
        return True

    def _array(
        self, number: int, windows: Windows, wanted: Sequence[FrameRequests], ahead: Sequence[FrameRequests]
    ) -> npt.NDArray[Any] | PlanarFrames:
        """Returns a camera of a batch.

        Args:
            number: of the camera.
            windows: the windows of the batch.
            wanted: the frames that are not `fill`.
            ahead: frames of the batches that are built next.
        """
        rows, planar = len(windows), self._planar[number]
        if planar is not None:
            try:
                return self._read_planes(planar, number, rows, wanted, ahead)
            except NoPlanesError as error:
                # Frames may differ from the index. The array is the same in both ways.
                _log.info("camera '%s' is converted to RGB here: %s", self._cameras[number].source, error)
                self._planar[number] = None
        output = self._cameras[number]
        memory, _ = self._pools[number].lease()
        frames = np.ndarray((rows * output.width, *output.shape), output.array_dtype, memory)
        padding = np.ones(len(frames), np.bool_)
        for each in wanted:
            self._read(number, each, ahead, frames)
            padding[each.places] = False
        if padding.any():
            source = np.repeat(np.broadcast_to(np.asarray(windows.source), rows), output.width)
            for dataset, outputs in self._outputs.items():
                frames[padding & (source == dataset)] = outputs[number].fill
        # The array keeps the lease of the buffer alive.
        return np.ndarray((rows, *output.array_shape), output.array_dtype, memory)

    def _requests(self, number: int, step: int, windows: Windows, hops: Int64Array | None) -> Iterator[FrameRequests]:
        """Yields the frames of some windows, dataset by dataset.

        Args:
            number: of the camera.
            step: the windows' step.
            windows: the windows.
            hops: int64 [B], steps to each window's next state; None: 1.
        """
        source = np.broadcast_to(np.asarray(windows.source, np.int64), len(windows))
        hops = np.ones(len(windows), np.int64) if hops is None else hops
        choices = self._choices.get(self._cameras[number].key)
        if choices is not None:
            drawn = [choice.numbers(self._seed, step, windows) == place for choice, place in choices]
            source = np.where(np.any(drawn, axis=0), source, -1)
        for dataset, outputs in self._outputs.items():
            rows = np.flatnonzero(source == dataset)
            if not len(rows) or outputs[number].absent:
                continue
            output, store, own = outputs[number], self._stores[dataset], windows[rows]
            steps = _frame_steps(output, own, store.lengths[own.episode_id], hops[rows])
            segments = self._segments(dataset, output.source)
            row, column = np.nonzero(steps >= 0)
            episode = own.episode_id[row]
            frame = segments.first_frame[episode] + steps[row, column]
            yield FrameRequests(dataset, segments.file[episode], frame, rows[row] * output.width + column)

    def _read(self, number: int, wanted: FrameRequests, ahead: Sequence[FrameRequests], frames: Any) -> None:
        """Decodes frames to their places. Each distinct frame is decoded once.

        frames: the array, [B * width, ...].
        """
        output = self._outputs[wanted.dataset][number]
        reader, hint = self._readers.reader(wanted.dataset, output.source), _hint(wanted, ahead)
        spec = self._components[wanted.dataset].request.schema[output.source]
        target: FrameTarget
        if spec.depth is not None:
            target = depth_frames(output, spec.depth, spec.shape[:2], frames)
        else:
            target = ValueFrames(output, frames) if output.camera == CHANNELS_FIRST else RgbFrames(frames)
        if output.source in self._components[wanted.dataset].letterboxed:
            target = LetterboxFrames(target)
        reader.read_into(target, wanted.file, wanted.frame, wanted.places, hint)

    def _read_planes(
        self, pool: PlanarPool, number: int, rows: int, wanted: Sequence[FrameRequests], ahead: Sequence[FrameRequests]
    ) -> PlanarFrames:
        """Decodes the frames of a camera as YUV, each distinct frame once."""
        distinct = [each.distinct() for each in wanted]
        frames = pool.lease(rows, sum(len(file) for file, _, _ in distinct))
        records, planes, first = frames.records, frames.planes, 0
        for each, (file, frame, inverse) in zip(wanted, distinct, strict=True):
            target = YuvFrames(planes[first : first + len(file)], np.empty((len(file), 6), np.int32))
            camera = self._outputs[each.dataset][number].source
            self._readers.reader(each.dataset, camera).read_planes(file, frame, target, _hint(each, ahead))
            records["slot"][each.places] = first + inverse
            records["conversion"][each.places] = target.conversions[inverse]
            first += len(file)
        return frames


def _hint(wanted: FrameRequests, ahead: Sequence[FrameRequests]) -> tuple[Int64Array, Int64Array] | None:
    """Returns file and frame of each request for a dataset that comes next."""
    later = [each for each in ahead if each.dataset == wanted.dataset]
    return (np.concatenate([e.file for e in later]), np.concatenate([e.frame for e in later])) if later else None


def _frame_steps(output: Output, windows: Windows, totals: Int64Array, hops: Int64Array) -> Int64Array:
    """Returns the step of each frame in its episode, int64 [B, width].

    These are the steps that the kernels collect of other columns (`gear_data.kernels.cpu.collect`). -1 stands for
    padding that holds `fill`.

    Args:
        output: the output of a camera.
        windows: B windows.
        totals: int64 [B], steps of each window's episode.
        hops: int64 [B], steps to each window's next state, if the output has one; 0 without a next state.
    """
    span = output.span
    places = np.array(output.places, np.int64)
    start, shift = windows.start, output.shift
    if output.next_state is not None:
        start, shift = start + hops, 0
    # The valid steps are lowest to highest. An episode has no step after its last one: no frame is stored of it.
    if output.within_window:
        places = places - (span.width - windows.length[:, None] if output.pad_left else 0)
        lowest = start + shift
        highest = np.minimum(start + windows.length + shift, totals) - 1
        steps = lowest[:, None] + places
    else:
        first = start + span.first + shift
        lowest = np.maximum(first, shift)
        highest = np.minimum(first + span.width, totals) - 1
        steps = first[:, None] + places
    if output.next_state is not None:
        highest = np.where((hops > 0) & (start < totals), highest, -1)
    low, high = lowest[:, None], highest[:, None]
    inside = (steps >= low) & (steps <= high)
    if output.padding is Padding.FILL:
        return np.where(inside, steps, -1)
    outside = np.clip(steps, low, high) if output.padding is Padding.EDGE else low
    return np.where(inside, steps, np.where(low <= high, outside, -1))
