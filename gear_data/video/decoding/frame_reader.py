"""FrameReader: reads frames of a dataset's video files into an array."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, wait
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from gear_data.common.cancellation import check_cancelled
from gear_data.common.environment import usable_cores
from gear_data.errors import CorruptShardError, InvalidArgumentError
from gear_data.video.decoding.backends import decoder_maker, gives_planes
from gear_data.video.decoding.decoder import DecodeError, Picture, undecodable
from gear_data.video.decoding.jobs import GroupJob, cut_packets, packet_ranges, plan_jobs
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.decoding.process_state import process_state
from gear_data.video.decoding.references import needed_packets
from gear_data.video.decoding.requests import FileRequest, file_requests
from gear_data.video.decoding.targets import FrameTarget, RgbFrames, YuvFrames
from gear_data.video.file_index import DISCARD, ColorProperties, VideoFile
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import ByteRange, PacketBytes

Int64Array = npt.NDArray[np.int64]
Frames = npt.NDArray[np.uint8]
Task = Callable[[], None]


class FrameReader:
    """Reads frames of a dataset's video files.

    Thread-safe, usable in a forked child, and picklable if `packets` is.

    Frames are decoded in this process. Each packet is compared with its checksum in the index before FFmpeg gets it.

    Args:
        index: the files.
        packets: the bytes of their packets.
        options: how frames are decoded.

    Raises:
        MissingExtraError: the library that decodes is not installed, or does not load.
    """

    def __init__(self, index: VideoIndex, packets: PacketBytes, options: DecodeOptions) -> None:
        self.index = index
        self.packets = packets
        self.options = options
        self._threads = options.threads or usable_cores()
        self._make_decoder = decoder_maker(options.backend)

    def read(
        self,
        file: Int64Array,
        frame: Int64Array,
        out: Frames,
        rows: Int64Array | None = None,
        ahead: tuple[Int64Array, Int64Array] | None = None,
    ) -> None:
        """Writes frames into an array, as RGB. Each group of pictures is decoded once.

        Args:
            file: int64 [n], number of the file of each request, in any order. Requests may repeat.
            frame: int64 [n], number of the frame in its file, in presentation order from 0.
            out: uint8 [m, H, W, 3], C-contiguous. H and W are `options.size`, or the size of every file's frames.
            rows: int64 [n], the row of `out` for each request, without repeats. None: request i goes to row i.
            ahead: (file, frame), both int64: what later calls will read. Those of these frames that are in a group of
                pictures that is decoded now are decoded too, and the cache keeps them.

        Raises:
            InvalidArgumentError: a file or frame does not exist, or `out` has another shape or dtype.
            CorruptShardError: a packet is damaged or does not decode, or a frame has another size than the index says.
            RemoteError, ClusterError: the bytes cannot be fetched.
        """
        self.read_into(RgbFrames(out), file, frame, rows, ahead)

    def read_planes(
        self, file: Int64Array, frame: Int64Array, out: YuvFrames, ahead: tuple[Int64Array, Int64Array] | None = None
    ) -> None:
        """Writes frames as YUV, as the file has them. Request i goes to row i; see `read`.

        Raises:
            NoPlanesError: a frame is not such YUV, or FFmpeg converts it to RGB in another way on this machine.
            InvalidArgumentError: frames are resized; or see `read`.
            CorruptShardError, RemoteError, ClusterError: see `read`.
        """
        if self.options.size is not None:
            raise InvalidArgumentError("frames are not resized as YUV", hint="read RGB, or leave the size out")
        self.read_into(out, file, frame, None, ahead)

    def gives_planes(self, files: Int64Array) -> bool:
        """Returns whether `read_planes` reads the frames of some files.

        The index of the files says so. All files must have one size.
        """
        names = ["pixel_format", "height", "width", "color_range", "color_space", "color_primaries", "color_transfer"]
        kinds = self.index.files.select(names).take(np.unique(files)).group_by(names).aggregate([]).to_pylist()
        if self.options.size is not None or len({(each["height"], each["width"]) for each in kinds}) != 1:
            return False
        return all(
            gives_planes(self.options.backend, pixel_format, height, width, ColorProperties(*colors))
            for pixel_format, height, width, *colors in map(dict.values, kinds)
        )

    def read_into(
        self,
        out: FrameTarget,
        file: Int64Array,
        frame: Int64Array,
        rows: Int64Array | None = None,
        ahead: tuple[Int64Array, Int64Array] | None = None,
    ) -> None:
        """Writes frames into a target of any kind; see `read`. The threads that decode call `out.write`.

        Raises the errors of `read` and of the target.
        """
        requests = file_requests(self.index, file, frame, np.arange(len(file)) if rows is None else rows, ahead)
        out.check(
            {self.options.size} if self.options.size else {(each.video.height, each.video.width) for each in requests}
        )
        cache = process_state().cache
        found: list[Task] = []
        jobs: list[tuple[FileRequest, GroupJob]] = []
        for request in requests:
            missed = []
            for number, time in request.times.items():
                picture = cache.get(self._key(request.video, time), expected=time in request.expected)
                if picture is None or self._refuses(picture):
                    missed.append(number)
                else:
                    found.append(partial(self._show_cached, request, picture, out))
            jobs += [(request, self._job(request, job)) for job in plan_jobs(self.index, request.number, missed)]
        # The longest work begins first, so that all threads end at about the same time.
        jobs.sort(key=lambda each: each[1].first - each[1].last)
        ranges = [packet_ranges(self.index, job) for _, job in jobs]
        data = iter(self.packets.read([each for of_job in ranges for each in of_job]))
        tasks: list[Task] = [
            partial(self._decode, request, job, of_job, [next(data) for _ in of_job], out)
            for (request, job), of_job in zip(jobs, ranges, strict=True)
        ]
        tasks += found
        state = process_state()
        # Batches that are built ahead call this at once, each in a thread of its own. They share the helpers: more
        # threads than cores only compete for them.
        with state.decoding() as calls:
            helpers = min(-(-self._threads // calls), len(tasks)) - 1
            run_all(tasks, state.executor(self._threads) if helpers > 0 else None, helpers)

    def _key(self, video: VideoFile, part: int) -> Hashable:
        """Returns the key of a frame (by its time) or group of a file.

        Equal files have equal keys in all readers.
        """
        return self._make_decoder, video.checksum, video.file, part

    def _job(self, request: FileRequest, job: GroupJob) -> GroupJob:
        """Returns the job, with what later calls want of its last group.

        If frames are read one by one, this is the whole group.
        """
        frame, video = min(job.frames.values()), request.video
        limit = self.options.cache_bytes
        if (job.end - job.first) * 2 * video.height * video.width > limit // 2:
            return job
        if request.expected:
            times = video.packets.pts[job.last : job.end].tolist()
            expected = [number for number, time in enumerate(times, job.last) if time in request.expected]
            job = replace(job, last=max([job.last, *(number + 1 for number in expected)]))
        if frame == 0:
            return job
        before = int(video.packets.pts[video.frames[frame - 1]])
        # The frame before is in the cache, but this frame is not: the call before decoded only a part of the group.
        decoded = self._key(video, before) in process_state().cache
        return replace(job, last=job.end, every=True) if decoded and before >= job.trusted else job

    def _parameters(self, video: VideoFile) -> Hashable:
        """Returns the key of the decoders that can decode a file."""
        return self._make_decoder, video.codec, video.extradata, video.height, video.width, video.colors

    def _refuses(self, picture: Picture) -> bool:
        return picture.damaged and self.options.strict

    def _show_cached(self, request: FileRequest, picture: Picture, out: FrameTarget) -> None:
        state, parameters = process_state(), self._parameters(request.video)
        decoder = state.take_decoder(parameters) or self._make_decoder(request.video)
        out.write(decoder, picture, request.rows[picture.pts])
        state.give_back(parameters, decoder, self._threads)

    def _decode(
        self, request: FileRequest, job: GroupJob, ranges: list[ByteRange], data: list[memoryview], out: FrameTarget
    ) -> None:
        if not self.options.cache_bytes:
            self._decode_missing(request, job, dict(job.frames), ranges, data, out)
            return
        # Two calls may want frames of one group at a time. The second call finds them in the cache.
        with process_state().only_thread(self._key(request.video, job.first)):
            missing = dict(job.frames)
            for time in job.frames:
                picture = process_state().cache.get(self._key(request.video, time), expected=time in request.expected)
                if picture is not None and not self._refuses(picture):
                    del missing[time]
                    self._show_cached(request, picture, out)
            if missing:
                self._decode_missing(request, job, missing, ranges, data, out)

    def _decode_missing(
        self,
        request: FileRequest,
        job: GroupJob,
        missing: dict[int, int],
        ranges: list[ByteRange],
        data: list[memoryview],
        out: FrameTarget,
    ) -> None:
        video, limit, state = request.video, self.options.cache_bytes, process_state()
        parameters = self._parameters(video)
        part = slice(job.first, job.last)
        # An edit list may give frames that it hides the times of others.
        hidden = {*video.packets.pts[part][video.packets.flags[part] & DISCARD > 0].tolist()}
        try:
            packets = list(cut_packets(self.index, job, ranges, data))
            if not (job.every or 2 * self.index.num_pixels <= limit or min(missing) < job.trusted):
                packets = needed_packets(video, packets, missing.keys() | request.expected)
            decoder = state.take_decoder(parameters) or self._make_decoder(video)
            # Frames before the first key frame of a file are as a decoder gives them.
            for picture in decoder.decode(packets, min(job.trusted, *job.frames)):
                if (picture.height, picture.width) != (video.height, video.width):
                    raise DecodeError(
                        f"it has {picture.height} x {picture.width} pixels, and the index says "
                        f"{video.height} x {video.width}"
                    )
                if picture.pts in missing and self._refuses(picture):
                    raise DecodeError("the decoder reports damage in it")
                wanted = missing.pop(picture.pts, None) is not None
                if wanted:
                    out.write(decoder, picture, request.rows[picture.pts])
                if limit and picture.pts not in hidden:
                    state.cache.put(
                        self._key(video, picture.pts), picture, limit, expected=picture.pts in request.expected
                    )
            state.give_back(parameters, decoder, self._threads)
        except (DecodeError, CorruptShardError) as error:
            # Frames that are only read ahead may be damaged.
            if missing:
                if isinstance(error, CorruptShardError):
                    raise
                raise undecodable(video, min(missing.values()), error) from error
        if missing:
            raise undecodable(video, min(missing.values()), "the decoder gave no such frame")


def run_all(tasks: Sequence[Task], executor: Executor | None, helpers: int) -> None:
    """Runs tasks in this thread and others, and returns when all have ended.

    Args:
        tasks: begun in their order.
        executor: of the other threads; None: this thread runs all.
        helpers: number of other threads.

    Raises:
        Exception: the error of the first task that failed. All others ran.
        Cancelled, KeyboardInterrupt: this thread was interrupted. No task runs any more.
    """
    todo = deque(enumerate(tasks))
    failures: dict[int, Exception] = {}
    others = [] if executor is None else [executor.submit(_drain, todo, failures) for _ in range(helpers)]
    try:
        _drain(todo, failures, check_cancelled)
    finally:
        # After an interrupt tasks are left. The memory that they write may be used again when this call returns.
        todo.clear()
        wait([each for each in others if not each.cancel()])
    if failures:
        raise failures[min(failures)]


def _drain(todo: deque[tuple[int, Task]], failures: dict[int, Exception], check: Task | None = None) -> None:
    while todo:
        if check is not None:
            check()
        try:
            number, task = todo.popleft()
        except IndexError:
            # Another thread took the last task.
            return
        try:
            task()
        except Exception as error:
            failures[number] = error
