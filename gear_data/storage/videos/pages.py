"""Pages: the parts in which video files at a URL are fetched and cached.

A page begins where a group of pictures begins, and has at least `PAGE_BYTES` bytes. So the groups of a batch cost
little more than their own bytes, and the cache has no tiny files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.video.file_index import VideoFile
from gear_data.video.frame_groups import FrameGroups

#: Fewest bytes of a page. A request takes as long as the transfer of some 128 KiB.
PAGE_BYTES = 128 << 10


@dataclass(frozen=True, eq=False)
class Pages:
    """The n pages of one file.

    Attributes:
        bounds: int64 [n + 1], rising: page i has the bytes bounds[i] to bounds[i + 1] of the file.
        positions: int64 [packets], rising: the first byte of each packet.
        sizes: int32 [packets], the bytes of each packet.
        digests: uint64 [packets], xxh3-64 of each packet; None if the file was not read.
    """

    bounds: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    digests: npt.NDArray[np.uint64] | None

    def has(self, first: int, last: int) -> bool:
        """Returns whether pages have the bytes first to last of the file. They lack its header and its index."""
        return bool(self.bounds[0] <= first < self.bounds[-1] and last <= self.bounds[-1])

    def of_range(self, first: int, last: int) -> range:
        """Returns the pages that have the bytes first to last of the file."""
        low = int(np.searchsorted(self.bounds, first, "right")) - 1
        return range(low, max(low + 1, int(np.searchsorted(self.bounds, last, "left"))))

    def span(self, page: int) -> tuple[int, int]:
        """Returns the first byte of a page, and the byte after its last."""
        return int(self.bounds[page]), int(self.bounds[page + 1])

    def is_sound(self, page: int, data: memoryview) -> bool:
        """Returns whether the bytes of a page have the packets of the index."""
        first, last = self.span(page)
        if self.digests is None:
            return len(data) == last - first
        low, high = np.searchsorted(self.positions, [first, last]).tolist()
        return len(data) == last - first and all(
            position + size > last
            or xxhash.xxh3_64_intdigest(data[position - first : position - first + size]) == digest
            for position, size, digest in zip(
                self.positions[low:high].tolist(),
                self.sizes[low:high].tolist(),
                self.digests[low:high].tolist(),
                strict=True,
            )
        )


def file_pages(video: VideoFile, groups: FrameGroups) -> Pages:
    """Returns the pages of a file. They hold all its packets."""
    packets = video.packets
    order = np.argsort(packets.position, kind="stable")
    positions = packets.position[order]
    end = int((packets.position + packets.size).max())
    starts = np.unique(packets.position[groups.starts[:-1]])
    bounds = [int(positions[0])]
    for start in starts.tolist():
        if start - bounds[-1] >= PAGE_BYTES:
            bounds.append(start)
    digests = packets.digest[order] if video.was_read else None
    return Pages(np.array([*bounds, end], np.int64), positions, packets.size[order], digests)
