"""Cameras of a converted dataset, attached by hand: no conversion, and any index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa

from gear_data.schema import Schema, VideoFormat, video_column
from gear_data.video.file_index import KEY, ColorProperties, Packets, VideoFile
from gear_data.video.index_tables import TABLE_FILES, index_tables
from gear_data.video.segments import VideoSegments, segment_columns
from tests.support.manifests import edited_manifest, read_ipc, replace_table


def video_file(name: str, frames: int, *, height: int = 48, width: int = 64, group: int = 4) -> VideoFile:
    """Returns the index of a file that does not exist: `group` packets of 10 bytes for each key frame."""
    numbers = np.arange(frames)
    packets = Packets(
        pts=numbers.astype(np.int64),
        position=(10 * numbers).astype(np.int64),
        size=np.full(frames, 10, np.int32),
        flags=np.where(numbers % group == 0, KEY, 0).astype(np.uint8),
        digest=numbers.astype(np.uint64),
    )
    colors, time_base = ColorProperties(), Fraction(1, 30)
    return VideoFile(name, 10 * frames, "xxh3-128:0", "h264", b"", "yuv420p", height, width, colors, time_base, packets)


def attach_cameras(folder: Path, files: Sequence[VideoFile], cameras: Mapping[str, VideoSegments]) -> None:
    """Gives a dataset cameras: the tables of some files, and the segments of each camera.

    A camera has the frame size of its first episode's file. Fingerprint and content hashes stay as they were.
    """
    with edited_manifest(folder) as manifest:
        sizes = {name: files[int(segments.file[0])] for name, segments in cameras.items()}
        videos = [video_column(name, VideoFormat(file.height, file.width)) for name, file in sizes.items()]
        manifest["videos"] = Schema((), tuple(videos)).videos_to_json()
        for name, file in TABLE_FILES.items():
            manifest["tables"][name] = {"file": file, "bytes": 0, "checksum": ""}
    for file, table in zip(TABLE_FILES.values(), index_tables(files), strict=True):
        replace_table(folder, file, table)
    table = read_ipc(folder / "episodes.arrow")
    for name, segments in cameras.items():
        for column, values in zip(segment_columns(name), (segments.file, segments.first_frame), strict=True):
            table = table.append_column(column, pa.array(values, pa.int64()))
    replace_table(folder, "episodes.arrow", table)
