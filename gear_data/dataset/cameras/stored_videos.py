"""StoredVideos: the files and episodes of a dataset's cameras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import ManifestError
from gear_data.schema import ColumnSpec
from gear_data.selection.windows import Int64Array
from gear_data.storage.arrow_files import table_values
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import Manifest
from gear_data.storage.videos.stored_packets import read_video_index
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import PacketBytes
from gear_data.video.segments import VideoSegments, segment_columns

if TYPE_CHECKING:
    from gear_data.video.decoding.frame_reader import FrameReader

#: Remedy for tables that contradict each other.
_RESTORE = "run 'gear-data verify', then convert the source again"


@dataclass(frozen=True, eq=False)
class StoredVideos:
    """The cameras of a dataset.

    Attributes:
        index: the files, and where their packets are.
        segments: name of a camera -> the frames of all episodes, by id.
        packets: reads the packets.
    """

    index: VideoIndex
    segments: Mapping[str, VideoSegments]
    packets: PacketBytes

    @cached_property
    def reader(self) -> FrameReader:
        """Decodes frames that are read from episodes. Loaders have their own readers."""
        # Its decoders are much code, which datasets without cameras do not need.
        from gear_data.video.decoding.frame_reader import FrameReader
        from gear_data.video.decoding.options import DecodeOptions

        return FrameReader(self.index, self.packets, DecodeOptions())

    def frames(self, camera: ColumnSpec, episodes: Int64Array, steps: Int64Array) -> npt.NDArray[Any]:
        """Decodes the frames of a camera at some steps: uint8 [n, H, W, 3], or float32 [n, H, W, 1] of depth.

        Args:
            camera: the camera.
            episodes: int64 [n], ids of episodes.
            steps: int64 [n], a step of each episode.
        """
        segments = self.segments[camera.name]
        out = np.empty((len(steps), *camera.shape), camera.dtype)
        if len(steps):
            from gear_data.video.depth import frame_target

            target = frame_target(camera, out)
            self.reader.read_into(target, segments.file[episodes], segments.first_frame[episodes] + steps)
        return out

    def depth_numbers(self, camera: ColumnSpec, episodes: Int64Array, steps: Int64Array) -> npt.NDArray[np.uint16]:
        """Decodes the 12-bit numbers of a camera's depth: uint16 [n, H, W, 1]. See `frames`; n is at least 1."""
        from gear_data.video.depth import NUMBERS, DepthFrames

        segments = self.segments[camera.name]
        out = np.empty((len(steps), *camera.shape), np.uint16)
        target = DepthFrames(out, out.shape[1], out.shape[2], np.arange(NUMBERS, dtype=np.uint16))
        self.reader.read_into(target, segments.file[episodes], segments.first_frame[episodes] + steps)
        return out


def read_videos(
    files: DatasetFiles,
    manifest: Manifest,
    episodes: Any,
    lengths: Int64Array,
    packets: Callable[[VideoIndex], PacketBytes],
) -> StoredVideos:
    """Maps and checks the tables of a dataset's cameras. Reads no video.

    Args:
        files: files of the dataset.
        manifest: manifest of the dataset.
        episodes: the episode table.
        lengths: int64 [n], steps of each episode.
        packets: returns what reads the packets of some files.

    Raises:
        CorruptShardError: a table is damaged.
        ManifestError: the tables contradict each other.
    """
    index = read_video_index(files, manifest)
    table = files.name(manifest.tables["episodes"])
    cameras = {spec.name: _segments(spec, index, episodes, lengths, table) for spec in manifest.schema.videos}
    return StoredVideos(index, cameras, packets(index))


def _segments(spec: ColumnSpec, index: VideoIndex, episodes: Any, lengths: Int64Array, table: str) -> VideoSegments:
    """Returns the segments of a camera.

    They are checked against the files, because the decoder looks frames up by them.
    """
    file, first = (table_values(episodes, name) for name in segment_columns(spec.name))
    known = (file >= 0) & (file < len(index))
    _check(known, "the number of its video file does not exist", spec, table)
    # A sum first + length could overflow.
    _check(
        (first >= 0) & (lengths <= index.frame_counts[file] - first),
        "its frames lie outside its video file",
        spec,
        table,
    )
    sizes = np.stack([table_values(index.files, name) for name in ("height", "width")], axis=1)
    _check((sizes[file] == spec.shape[:2]).all(axis=1), "its video file has frames of another size", spec, table)
    return VideoSegments(file, first)


def _check(sound: Any, problem: str, spec: ColumnSpec, table: str) -> None:
    if not sound.all():
        row = int(np.argmin(sound))
        raise ManifestError(f"of episode {row}: {problem}", file=table, column=spec.name, row=row, hint=_RESTORE)
