"""GroupJob: frames of one file that are decoded in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.video.decoding.decoder import EncodedPacket, undecodable
from gear_data.video.index_tables import VideoIndex
from gear_data.video.indexing.entry_points import strict_entry_test
from gear_data.video.packet_bytes import ByteRange

#: Most bytes between two packets that are read with them. Other streams of the file lie there.
_GAP_BYTES = 4096


@dataclass(frozen=True)
class GroupJob:
    """Frames of one file that are decoded in one go.

    A frame is known by its presentation time, because decoders keep times, and may leave out frames.

    Attributes:
        file: number of the file.
        first: the first packet that the decoder gets. A group of pictures begins there.
        last: the last packet, excluded. It is needed for a frame.
        end: the last packet of the last group, excluded.
        frames: presentation time of each wanted frame -> its number.
        trusted: frames from this time on are right. Earlier frames need packets before `first`.
        every: whether later calls will want all frames up to `last`.
    """

    file: int
    first: int
    last: int
    end: int
    frames: dict[int, int]
    trusted: int
    every: bool = False


def plan_jobs(index: VideoIndex, file: int, frames: Sequence[int]) -> Iterator[GroupJob]:
    """Yields jobs that decode some frames of a file, each frame in one job.

    Args:
        index: the files.
        file: number of the file.
        frames: without repeats, all in the file.
    """
    video, groups = index.file(file), index.groups(file)
    numbers = np.array(frames, np.int64)
    packet = video.frames[numbers]
    wanted: dict[int, list[tuple[int, int, int, bool]]] = {}
    for group, *rest in zip(
        groups.group[numbers].tolist(),
        frames,
        packet.tolist(),
        video.packets.pts[packet].tolist(),
        groups.leading[numbers].tolist(),
        strict=True,
    ):
        wanted.setdefault(group, []).append(tuple(rest))
    job: GroupJob | None = None
    for group in sorted(wanted):
        first, end = groups.packets(group, leading=any(leading for *_, leading in wanted[group]))
        last = 1 + max(packet for _, packet, _, _ in wanted[group])
        found = {time: frame for frame, _, time, _ in wanted[group]}
        if job is not None and first < job.last:
            # The group needs the group before, and frames of both are wanted: the decoder goes on.
            job = GroupJob(file, job.first, last, end, job.frames | found, job.trusted)
            continue
        if job is not None:
            yield job
        job = GroupJob(file, first, last, end, found, int(video.packets.pts[first]))
    if job is not None:
        yield job


def packet_ranges(index: VideoIndex, job: GroupJob) -> list[ByteRange]:
    """Returns the ranges of bytes that hold a job's packets, in their order."""
    packets = index.file(job.file).packets
    ranges: list[ByteRange] = []
    for position, size in zip(
        packets.position[job.first : job.last].tolist(), packets.size[job.first : job.last].tolist(), strict=True
    ):
        if ranges and 0 <= position - ranges[-1][2] <= _GAP_BYTES:
            ranges[-1] = (job.file, ranges[-1][1], position + size)
        else:
            ranges.append((job.file, position, position + size))
    return ranges


def frame_ranges(index: VideoIndex, file: npt.NDArray[np.int64], frame: npt.NDArray[np.int64]) -> list[ByteRange]:
    """Returns the ranges of bytes that some frames need.

    Args:
        index: the files.
        file, frame: int64 [n], the file and the number of each frame. They may repeat.
    """
    ranges: list[ByteRange] = []
    for number in np.unique(file).tolist():
        for job in plan_jobs(index, number, np.unique(frame[file == number]).tolist()):
            ranges += packet_ranges(index, job)
    return ranges


def cut_packets(
    index: VideoIndex, job: GroupJob, ranges: Sequence[ByteRange], data: Sequence[memoryview]
) -> Iterator[EncodedPacket]:
    """Yields a job's packets, each compared with its checksum.

    Args:
        index: the files.
        job: the job.
        ranges: `packet_ranges` of the job.
        data: the bytes of each range.

    Raises:
        CorruptShardError: a packet has changed.
    """
    video = index.file(job.file)
    packets, part = video.packets, slice(job.first, job.last)
    at, copied = 0, np.array(data[0]).data
    for number, pts, position, size, digest in zip(
        range(job.first, job.last),
        packets.pts[part].tolist(),
        packets.position[part].tolist(),
        packets.size[part].tolist(),
        packets.digest[part].tolist(),
        strict=True,
    ):
        if not ranges[at][1] <= position < position + size <= ranges[at][2]:
            # NumPy copies without the interpreter lock. So no other thread waits for pages that are not in memory yet.
            at, copied = at + 1, np.array(data[at + 1]).data
        begin = position - ranges[at][1]
        encoded = copied[begin : begin + size]
        if not video.was_read:
            if number == job.first and not strict_entry_test(video.codec, video.extradata)(bytes(encoded)):
                problem = f"packet {number} at byte {position} is no whole picture, and its file says so"
                raise undecodable(video, min(job.frames.values()), problem)
        elif xxhash.xxh3_64_intdigest(encoded) != digest:
            raise undecodable(video, min(job.frames.values()), f"packet {number} at byte {position} has changed")
        yield EncodedPacket(pts, encoded)
