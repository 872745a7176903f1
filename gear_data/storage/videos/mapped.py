"""Video files of a dataset, mapped into memory."""

from __future__ import annotations

from pathlib import PurePosixPath

import pyarrow as pa

from gear_data.common.paths import is_remote
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import FileEntry, check_inside
from gear_data.storage.mapped_shards import check_file_size, map_file
from gear_data.video.index_tables import FILES_TABLE, TABLE_FILES, VideoIndex
from gear_data.video.packet_bytes import LocalPackets


def is_kept(file: str) -> bool:
    """Returns whether a video file is in the dataset's folder.

    A linked file has an absolute path or a URL.
    """
    return not PurePosixPath(file).is_absolute() and not is_remote(file)


def video_entry(files: DatasetFiles, index: VideoIndex, number: int) -> FileEntry:
    """Returns the entry of a video file.

    Its path is in the dataset's folder. A file that conversion only linked has an absolute path or a URL.

    Raises:
        ManifestError: the path is relative and leaves the folder.
    """
    video = index.listed(number)
    if is_kept(video.file):
        check_inside(video.file, f"{files.location}/{TABLE_FILES[FILES_TABLE]}")
    return FileEntry(video.file, video.size, video.checksum)


def mapped_packets(files: DatasetFiles, index: VideoIndex) -> LocalPackets:
    """Returns what reads packets of files that are mapped at their first use.

    Args:
        files: files of the dataset.
        index: the video files. All that are read are on this machine.
    """

    def map_video(number: int) -> pa.Buffer:
        entry = video_entry(files, index, number)
        with files.local(entry) as path:
            # A group of pictures is read whole.
            buffer = map_file(path, read_ahead=True)
            # The file may have been truncated since `local` checked its size.
            check_file_size(files.name(entry), buffer.size, entry)
            files.mapped.add(entry, path)
        return buffer

    return LocalPackets(map_video, lambda number: files.mapped.check_file(index.listed(number).file))
