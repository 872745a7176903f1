"""The cameras of a dataset that is merged."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from gear_data.common.paths import is_remote, join
from gear_data.ingest.findings.video_files import DeclaredVideo
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import SourceVideos
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import Manifest
from gear_data.storage.remote.range_reader import filesystem_of
from gear_data.storage.videos.mapped import is_kept, video_entry
from gear_data.storage.videos.stored_packets import read_video_index
from gear_data.video.index_tables import VideoIndex
from gear_data.video.segments import VideoSegments, VideoTimes


def read_index(files: DatasetFiles, manifest: Manifest) -> VideoIndex | None:
    """Reads the index of a dataset's video files; None without cameras.

    Raises CorruptShardError if a table is damaged.
    """
    return read_video_index(files, manifest) if manifest.schema.videos else None


def source_of_videos(files: DatasetFiles, manifest: Manifest, index: VideoIndex, episodes: pa.Table) -> SourceVideos:
    """Returns the cameras of a dataset as the cameras of a source.

    Args:
        files: the files of the dataset.
        manifest: its manifest.
        index: its video files.
        episodes: its episode table.
    """
    places = [video_entry(files, index, number) for number in range(len(index))]
    cameras = [""] * len(index)
    for spec in manifest.schema.videos:
        for number in np.unique(episodes.column(f"videos/{spec.name}/file").to_numpy()).tolist():
            cameras[number] = spec.source_name
    return SourceVideos(
        manifest.schema.videos,
        tuple(_source_file(str(files.location), entry.file, entry.bytes) for entry in places),
        tuple(DeclaredVideo(camera, entry.file) for camera, entry in zip(cameras, places, strict=True)),
    )


def _source_file(location: str, file: str, size: int) -> SourceFile:
    place = join(location, file) if is_kept(file) else file
    if not is_remote(place):
        return SourceFile(os.path.abspath(place), file, size)
    filesystem, path = filesystem_of(place)
    return SourceFile(path, PurePosixPath(file).name if is_remote(file) else file, size, filesystem=filesystem)


def video_times(segments: VideoSegments, index: VideoIndex) -> VideoTimes:
    """Returns the times at which the episodes begin in their files."""
    index.load(segments.file)
    pairs = list(zip(segments.file.tolist(), segments.first_frame.tolist(), strict=True))
    return VideoTimes(
        segments.file,
        np.array([index.file(number).times[first] for number, first in pairs], np.float64),
        np.full(len(pairs), -1),
        [index.listed(number).file for number, _ in pairs],
    )
