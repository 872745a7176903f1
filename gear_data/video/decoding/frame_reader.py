"""FrameReader: reads frames of a dataset's video files into an array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear_data.video.decoding.decoder import EncodedPacket, undecodable
from gear_data.video.decoding.jobs import GroupJob, packet_ranges, plan_jobs
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.decoding.pyav import PyavDecoder
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import PacketBytes

Int64Array = npt.NDArray[np.int64]


class FrameReader:
    """Reads frames of a dataset's video files. Thread-safe, picklable, and usable in a forked child.

    Args:
        index: the files.
        packets: the bytes of their packets.
        options: how frames are decoded.
    """

    def __init__(self, index: VideoIndex, packets: PacketBytes, options: DecodeOptions) -> None:
        self.index = index
        self.packets = packets
        self.options = options

    def read(
        self,
        file: Int64Array,
        frame: Int64Array,
        out: npt.NDArray[np.uint8],
        rows: Int64Array | None = None,
        ahead: tuple[Int64Array, Int64Array] | None = None,
    ) -> None:
        """Writes frames into an array, as RGB.

        Args:
            file: int64 [n], number of the file of each request, in any order. Requests may repeat.
            frame: int64 [n], number of the frame in its file, in presentation order from 0.
            out: uint8 [m, H, W, 3], C-contiguous. H and W are `options.size`, or the size of every file's frames.
            rows: int64 [n], the row of `out` for each request, without repeats. None: request i goes to row i.
            ahead: (file, frame), both int64: what later calls will read. Of these frames, the cache keeps those that
                are decoded now anyway.

        Raises:
            InvalidArgumentError: a file or frame does not exist, or `out` has another shape or dtype.
            CorruptShardError: a packet is damaged or does not decode, or a frame has another size than the index says.
            RemoteError, ClusterError: bytes cannot be fetched.
            MissingExtraError: the library that decodes is not installed.
        """
        rows = np.arange(len(file)) if rows is None else rows
        for number in np.unique(file).tolist():
            mine = np.flatnonzero(file == number)
            frames, inverse = np.unique(frame[mine], return_inverse=True)
            targets: dict[int, list[int]] = {}
            for each, row in zip(inverse.tolist(), rows[mine].tolist(), strict=True):
                targets.setdefault(int(frames[each]), []).append(row)
            for job in plan_jobs(self.index, number, frames):
                self._run(job, out, targets)

    def _run(self, job: GroupJob, out: npt.NDArray[np.uint8], targets: dict[int, list[int]]) -> None:
        video = self.index.file(job.file)
        ranges = packet_ranges(self.index, job)
        data = self.packets.read(ranges)
        decoder = PyavDecoder(video)
        missing = dict(job.frames)
        packets = []
        at = 0
        for number in range(job.first, job.last):
            position, size = int(video.packets.position[number]), int(video.packets.size[number])
            while not ranges[at][1] <= position < position + size <= ranges[at][2]:
                at += 1
            begin = position - ranges[at][1]
            packets.append(EncodedPacket(int(video.packets.pts[number]), data[at][begin : begin + size]))
        for picture in decoder.decode(video, packets):
            frame = missing.pop(picture.pts, None)
            if frame is not None:
                for row in targets[frame]:
                    decoder.write(picture, out[row])
        if missing:
            raise undecodable(video, min(missing.values()), "the decoder gave no frame")
