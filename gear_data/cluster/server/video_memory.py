"""Video files that a node holds in memory, for reads by RDMA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gear_data.common.paths import is_remote
from gear_data.errors import CorruptShardError, HostMemoryError
from gear_data.residency.host import host_files
from gear_data.selection.windows import Int64Array
from gear_data.storage.arrow_files import read_table
from gear_data.storage.dataset_files import CachedFiles, DatasetFiles
from gear_data.storage.manifest import FileEntry, Manifest
from gear_data.storage.videos.mapped import video_entry
from gear_data.video.index_tables import VideoIndex
from gear_data.video.segments import segment_columns

_REMEDY = "serve fewer shards, or send videos by Arrow Flight: transport 'auto' at both ends"
_NONE: Int64Array = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class VideoMemory:
    """Video files in memory.

    Attributes:
        files: int64 [n], the numbers of the files, ascending.
        addresses, sizes: int64 [n], the first byte of each file in memory, and its bytes.
        segment: owns the memory.
    """

    files: Int64Array
    addresses: Int64Array
    sizes: Int64Array
    segment: pa.Buffer | None


#: No video file is in memory.
NO_VIDEOS = VideoMemory(_NONE, _NONE, _NONE, None)


def load_videos(files: DatasetFiles, manifest: Manifest, index: VideoIndex, shards: Sequence[int]) -> VideoMemory:
    """Copies the video files of some shards' episodes to shared memory.

    Files that this machine lacks, and files at URLs, are left out.

    Args:
        files: files of the dataset.
        manifest: manifest of the dataset.
        index: the video files.
        shards: positions of the shards in the manifest.

    Raises:
        HostMemoryError: there is too little memory.
        CorruptShardError: the episode table is damaged, or a file cannot be read.
    """
    if isinstance(files, CachedFiles):
        return NO_VIDEOS
    known = [(number, video_entry(files, index, number)) for number in _numbers(files, manifest, index, shards)]
    here = [(number, entry) for number, entry in known if not is_remote(entry.file) and _is_here(files, entry)]
    if not here:
        return NO_VIDEOS
    entries = [entry for _, entry in here]
    try:
        segment, places = host_files(files, entries, "video files")
    except HostMemoryError as error:
        error.hint = _REMEDY
        raise
    numbers, sizes = ([number for number, _ in here], [entry.bytes for entry in entries])
    return VideoMemory(np.array(numbers, np.int64), segment.address + places, np.array(sizes, np.int64), segment)


def _numbers(files: DatasetFiles, manifest: Manifest, index: VideoIndex, shards: Sequence[int]) -> list[int]:
    """Returns the numbers of the video files of some shards, ascending."""
    if not manifest.schema.videos:
        return []
    table = manifest.tables["episodes"]
    with files.local(table) as path:
        episodes = read_table(path, table.checksum)
    found: set[int] = set()
    own = np.isin(episodes.column("shard").to_numpy(), list(shards))
    for camera in manifest.schema.videos:
        name = segment_columns(camera.name)[0]
        if name not in episodes.column_names:
            raise CorruptShardError("the episode table lacks this column", file=files.name(table), column=name)
        found.update(episodes.column(name).to_numpy()[own].tolist())
    return sorted(found & {*range(len(index))})


def _is_here(files: DatasetFiles, entry: FileEntry) -> bool:
    try:
        with files.local(entry):
            return True
    except CorruptShardError:
        return False
