"""Cameras as a dataset stores them: as files, or as columns of pixels (`frames`) or JPEG files (`jpeg`)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.extras import PIL
from gear_data.errors import CorruptShardError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.pipeline.mapped_source import MappedSource, cut, without
from gear_data.ingest.source import NO_VIDEOS, EpisodeSource, source_videos
from gear_data.ingest.videos.indexed_source import LEAVE_OUT, IndexedSource, indexed_source
from gear_data.ingest.videos.storage_options import FRAMES, JPEG, VideoStorage
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock
from gear_data.storage.writing.file_store import FileStore
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.depth import frame_target
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import ByteRange

#: Quality of JPEG files, from 1 to 95, with colours at half the resolution, as in most videos.
JPEG_QUALITY = 95
#: Bytes of pixels of a yielded block, and of the frames that are decoded at once to make JPEG files.
_PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class SourcePackets:
    """`PacketBytes` of a source's files, local or behind a URL.

    Attributes:
        files: number of a file in the index -> the file.
    """

    files: Sequence[SourceFile]

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        result = []
        for number, first, last in ranges:
            with self.files[number].open() as file:
                file.seek(first)
                data = file.read(last - first)
            if len(data) != last - first:
                raise CorruptShardError("the file was cut off while it was read", file=self.files[number].name)
            result.append(memoryview(data))
        return result


class DecodedVideos(MappedSource):
    """An `EpisodeSource` that has the cameras of another source as ordinary columns.

    Args:
        source: a source whose blocks have `EpisodeBlock.videos`, and whose cameras have the frames of the index.
        index: its files.
        packets: the bytes of the files.
        videos: the mode, `FRAMES`: uint8 [H, W, 3], or float32 [H, W, 1] of depth; or `JPEG`: bytes; and the size to
            which the decoder scales frames.
        skip_bad: whether episodes that cannot be decoded are left out.
        threads: threads that decode.
    """

    def __init__(
        self,
        source: EpisodeSource,
        index: VideoIndex,
        packets: SourcePackets,
        videos: VideoStorage,
        *,
        skip_bad: bool,
        threads: int,
    ) -> None:
        self._cameras = source_videos(source).columns
        self._size = videos.size
        self._mode = videos.mode
        # A frame is needed once. Only a group that is cut between two pieces is decoded twice without a cache.
        options = DecodeOptions(threads=threads, size=videos.size, cache_bytes=_PIECE_BYTES, strict=True)
        self._reader = FrameReader(index, packets, options)
        columns = (*source.columns, *(self._column(spec) for spec in self._cameras))
        super().__init__(source, columns, NO_VIDEOS, skip_bad=skip_bad)
        self._step_bytes = sum(int(np.prod(self._shape(spec))) * spec.numpy_dtype.itemsize for spec in self._cameras)

    def _shape(self, spec: ColumnSpec) -> tuple[int, ...]:
        return spec.shape if self._size is None else (*self._size, 3)

    def _column(self, spec: ColumnSpec) -> ColumnSpec:
        """Returns the column in the shards of a camera."""
        if self._mode == JPEG:
            return ColumnSpec(spec.name, "binary", source=spec.source)
        return ColumnSpec(spec.name, spec.dtype, self._shape(spec), source=spec.source)

    def _pieces(self, block: EpisodeBlock) -> Iterator[EpisodeBlock]:
        return cut(block, block.offsets * self._step_bytes, _PIECE_BYTES)

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        bad = np.zeros(len(piece), np.bool_)
        read = self._encoded if self._mode == JPEG else self._decoded
        columns = {spec.name: read(spec, piece, bad) for spec in self._cameras}
        return without(replace(piece, columns={**piece.columns, **columns}, videos={}), bad)

    def _decoded(self, spec: ColumnSpec, piece: EpisodeBlock, bad: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Returns the steps of a camera, and marks the episodes that cannot be decoded."""
        offsets = piece.offsets
        out = np.zeros((int(offsets[-1]), *self._shape(spec)), spec.dtype)
        for episode in np.flatnonzero(~bad).tolist():
            first, last = offsets[episode : episode + 2].tolist()
            self._read(spec, piece, episode, 0, out[first:last], bad)
        return out

    def _encoded(self, spec: ColumnSpec, piece: EpisodeBlock, bad: npt.NDArray[np.bool_]) -> pa.Array:
        """Returns a JPEG file for each step; marks undecodable episodes as bad."""
        shape = self._shape(spec)
        at_once = max(1, _PIECE_BYTES // int(np.prod(shape)))
        result: list[bytes] = []
        for episode, length in enumerate(piece.lengths.tolist()):
            for step in range(0, length, at_once):
                pixels = np.zeros((min(at_once, length - step), *shape), np.uint8)
                if not bad[episode]:
                    self._read(spec, piece, episode, step, pixels, bad)
                result += [b"" if bad[episode] else _jpeg(each) for each in pixels]
        return pa.array(result, pa.large_binary())

    def _read(
        self,
        spec: ColumnSpec,
        piece: EpisodeBlock,
        episode: int,
        step: int,
        out: npt.NDArray[Any],
        bad: npt.NDArray[np.bool_],
    ) -> None:
        """Decodes frames of an episode from a step on; marks a failure as bad.

        Raises:
            BadEpisodeError: it fails, and bad episodes are not skipped.
        """
        segments = piece.videos[spec.name]
        frames = segments.first_frame[episode] + step + np.arange(len(out))
        try:
            self._reader.read_into(frame_target(spec, out), np.full(len(out), segments.file[episode]), frames)
        except CorruptShardError as error:
            bad[episode] = True
            reason = f"its video {error.file or ''} cannot be decoded: {error.message}"
            self._report_bad(piece, episode, reason, spec.source_name, f"restore the file, {LEAVE_OUT}")


def _jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def stored_cameras(
    source: EpisodeSource, store: FileStore, videos: VideoStorage, *, skip_bad: bool, threads: int
) -> EpisodeSource:
    """Returns a source whose blocks are ready to be stored.

    `stage_videos` has indexed its files. A source without cameras, or one that is ready, is returned unchanged.

    Args:
        source: the source.
        store: the dataset's folder.
        videos: what becomes of the video files.
        skip_bad: whether malformed episodes are left out.
        threads: threads that decode.

    Raises:
        ResumeError: the index is missing, or was changed.
    """
    indexed = indexed_source(source, store, skip_bad=skip_bad, one_size=videos.size is None)
    if videos.mode not in (FRAMES, JPEG) or not isinstance(indexed, IndexedSource):
        return indexed
    packets = SourcePackets(indexed_files(indexed))
    return DecodedVideos(indexed, indexed.staged.index, packets, videos, skip_bad=skip_bad, threads=threads)


def indexed_files(source: IndexedSource) -> Sequence[SourceFile]:
    """Returns the source's files in the order of the index."""
    files = source_videos(source).files
    return [files[number] for number in sorted(source.staged.rows, key=source.staged.rows.__getitem__)]
