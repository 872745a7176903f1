"""VideoSegments and VideoTimes: the frames of some episodes in one camera's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.video.index_tables import VideoIndex


@dataclass(frozen=True, eq=False)
class VideoSegments:
    """The frames of n episodes of one camera.

    Step t of episode i has the frame first_frame[i] + t of its file.

    Attributes:
        file: int64 [n], number of the file in `VideoIndex`.
        first_frame: int64 [n], number of the episode's first frame in the file, in presentation order from 0.
        digests: n hashes of the encoded frames (`segment_digests`); empty if they are not known.
    """

    file: npt.NDArray[np.int64]
    first_frame: npt.NDArray[np.int64]
    digests: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, rows: slice) -> VideoSegments:
        return VideoSegments(self.file[rows], self.first_frame[rows], self.digests[rows])


@dataclass(frozen=True, eq=False)
class VideoTimes:
    """The frames of n episodes of one camera, as an unindexed source knows them.

    Attributes:
        file: int64 [n], number of the file among the source's files; -1 if the source has no file for the episode.
        start: float64 [n], time of the episode's first frame in seconds.
        place: int64 [n], number of the episode among the places that the source declares for the file; -1 without.
        names: n names that the files have or should have, for messages.
    """

    file: npt.NDArray[np.int64]
    start: npt.NDArray[np.float64]
    place: npt.NDArray[np.int64]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, rows: slice) -> VideoTimes:
        return VideoTimes(self.file[rows], self.start[rows], self.place[rows], self.names[rows])

    def shifted(self, first: int) -> VideoTimes:
        """Returns the same frames where the files are numbered from `first` on."""
        return replace(self, file=np.where(self.file < 0, self.file, self.file + first))


def segment_columns(camera: str) -> tuple[str, str]:
    """Returns the names of a camera's two columns in the episode table.

    They have the file (int64) and the first frame (int64).
    """
    return f"videos/{camera}/file", f"videos/{camera}/first_frame"


def segment_digests(segments: VideoSegments, lengths: npt.NDArray[np.int64], index: VideoIndex) -> list[bytes]:
    """Returns a hash of the encoded frames of each episode, 16 bytes each.

    It covers the codec and its parameters, the packets of all groups that the episode's frames need, and where the
    episode begins in them. It does not depend on files: the same packets in another file give the same hash. The
    packets of an unindexed file are not known: the hash covers the name of the file's contents, and the episode's
    frames.

    Args:
        segments: the episodes.
        lengths: int64 [n], steps of each episode; its frames are in the file.
        index: the files.
    """
    result = []
    for number, first, length in zip(
        segments.file.tolist(), segments.first_frame.tolist(), lengths.tolist(), strict=True
    ):
        if index.unindexed[number]:
            result.append(xxhash.xxh3_128_digest(f"{index.listed(number).checksum} {first} {length}".encode()))
            continue
        video, groups = index.file(number), index.groups(number)
        frames = slice(first, first + length)
        owners, leading = groups.group[frames], groups.leading[frames]
        lowest = int(owners.min())
        start, _ = groups.packets(lowest, leading=bool(leading[owners == lowest].any()))
        _, stop = groups.packets(int(owners.max()), leading=False)
        digest = xxhash.xxh3_128()
        digest.update(video.codec.encode() + b"\0" + video.extradata)
        digest.update(np.ascontiguousarray(video.packets.digest[start:stop]).view(np.uint8).data)
        digest.update(np.ascontiguousarray(video.frames[frames] - start).view(np.uint8).data)
        result.append(digest.digest())
    return result
