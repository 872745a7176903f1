"""GroupJob: frames of one file that are decoded in one go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.video.index_tables import VideoIndex
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
        last: the last packet, excluded.
        frames: presentation time of each wanted frame -> its number.
        trusted: frames from this time on are right. Earlier frames need packets before `first`.
    """

    file: int
    first: int
    last: int
    frames: dict[int, int]
    trusted: int


def plan_jobs(index: VideoIndex, file: int, frames: npt.NDArray[np.int64]) -> Iterator[GroupJob]:
    """Yields jobs that decode some frames of a file, each frame in one job.

    Args:
        index: the files.
        file: number of the file.
        frames: int64 [n], without repeats, all in the file.
    """
    video, groups = index.file(file), index.groups(file)
    packet = video.frames[frames]
    pts = video.packets.pts[packet]
    wanted: dict[int, list[tuple[int, int, int, bool]]] = {}
    for frame, group, *rest in zip(
        frames.tolist(),
        groups.group[frames].tolist(),
        packet.tolist(),
        pts.tolist(),
        groups.leading[frames].tolist(),
        strict=True,
    ):
        wanted.setdefault(group, []).append((frame, *rest))
    first = last = 0
    found: dict[int, int] = {}
    for group in sorted(wanted):
        begin, _ = groups.packets(group, leading=any(leading for *_, leading in wanted[group]))
        # A group that needs the group before is decoded with that group, if frames of both are wanted.
        if found and begin >= last:
            yield GroupJob(file, first, last, found, int(video.packets.pts[first]))
            found = {}
        if not found:
            first = begin
        found |= {time: frame for frame, _, time, _ in wanted[group]}
        last = 1 + max(packet for _, packet, _, _ in wanted[group])
    if found:
        yield GroupJob(file, first, last, found, int(video.packets.pts[first]))


def packet_ranges(index: VideoIndex, job: GroupJob) -> list[ByteRange]:
    """Returns the ranges of bytes that hold a job's packets, in the order of the packets."""
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
