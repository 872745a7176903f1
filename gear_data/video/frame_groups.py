"""FrameGroups: the packets that must be decoded for a frame.

A group of pictures (GOP) begins with a key frame, and its packets follow in decoding order up to the next key frame.
Frames that are shown before the key frame of their group (open GOPs) also need the group before. So each frame has a
group, and each group says which packets a decoder gets.

Why: docs/explanation/decisions/video.md
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.video.file_index import KEY, VideoFile


@dataclass(frozen=True, eq=False)
class FrameGroups:
    """The groups of one file.

    Group g owns the packets starts[g] to starts[g + 1]. A decoder that gets them from a fresh state gives right frames
    from the key frame's time on. Frames before that time (`leading`) are right only if the packets of group g - 1 came
    first.

    Attributes:
        starts: int64 [groups + 1], the first packet of each group, and the number of packets.
        group: int64 [frames], the group that owns the packet of each frame, frames in presentation order.
        leading: bool [frames], whether the frame is shown before the key frame of its group.
    """

    starts: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    leading: npt.NDArray[np.bool_]

    def packets(self, group: int, *, leading: bool) -> tuple[int, int]:
        """Returns (first, last + 1) of the packets that a decoder gets for a group.

        Args:
            group: the group.
            leading: whether a leading frame of the group is wanted.
        """
        first = group - 1 if leading and group > 0 else group
        return int(self.starts[first]), int(self.starts[group + 1])


def frame_groups(video: VideoFile) -> FrameGroups:
    """Returns the groups of a file.

    Packets before the first key frame belong to the first group.
    """
    packets = video.packets
    keys = np.flatnonzero(packets.flags & KEY)
    starts = np.concatenate([[0], keys[1:], [len(packets)]]).astype(np.int64)
    group = np.searchsorted(starts, video.frames, "right") - 1
    key_times = packets.pts[keys] if len(keys) else packets.pts[:1]
    leading = packets.pts[video.frames] < key_times[np.minimum(group, len(key_times) - 1)]
    return FrameGroups(starts, group.astype(np.int64), leading)
