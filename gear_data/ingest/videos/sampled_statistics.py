"""Statistics of a source's cameras, from a sample that a worker process decodes.

FFmpeg decodes untrusted bytes there. If it crashes or hangs, or a frame is damaged, the camera has no statistics.

Command line of the worker: `python -m gear_data.ingest.videos.sampled_statistics FD`, where FD is an inherited
connection.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import GearError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import EpisodeSource
from gear_data.ingest.videos.decoded_videos import SourcePackets, indexed_files
from gear_data.ingest.videos.indexed_source import IndexedSource
from gear_data.schema import ColumnSpec
from gear_data.storage.statistics import ColumnStatistics
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.frame_statistics import FrameSample, choose_sample, count_values, frame_statistics
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.indexing.worker_process import WorkerEndedError, WorkerProcess
from gear_data.video.memory_limit import limit_memory
from gear_data.video.segments import VideoSegments, segment_columns

Int64Array = npt.NDArray[np.int64]

#: Seconds that a sample may take, and further seconds for each frame, which may need a whole group of pictures.
_SECONDS, _SECONDS_PER_FRAME = 120.0, 0.5
#: Most bytes of memory that the worker may allocate.
_MEMORY_BYTES = 8 << 30


def camera_statistics(
    source: EpisodeSource, episodes: pa.Table, findings: FindingLog, *, shareable: bool
) -> dict[str, ColumnStatistics]:
    """Returns the statistics of a source's cameras, from a sample of their frames.

    Args:
        source: the source; without an index of cameras it has no such statistics.
        episodes: the episode table.
        findings: receives `video-statistics-left-out` for a camera whose sample cannot be decoded.
        shareable: whether another process can open the files. Otherwise this process decodes.
    """
    if not isinstance(source, IndexedSource):
        return {}
    index, files = source.staged.index, indexed_files(source)
    if not all(index.listed(number).was_read for number in range(len(index))):
        for spec in source.videos.columns:
            message = "the video files were not read, only their indexes; the camera has no statistics"
            findings.add(Finding("video-statistics-left-out", message, column=spec.name))
        return {}
    return sampled_statistics(source.videos.columns, index, files, episodes, findings, shareable=shareable)


def sampled_statistics(
    cameras: Sequence[ColumnSpec], index: VideoIndex, files: Sequence[SourceFile], episodes: pa.Table,
    findings: FindingLog, *, shareable: bool,
) -> dict[str, ColumnStatistics]:  # fmt: skip
    """Returns the statistics of cameras, as `camera_statistics` does.

    Args:
        cameras: the cameras.
        index: the index of their files.
        files: the files, in the order of the index.
        episodes, findings, shareable: see `camera_statistics`.
    """
    statistics = {}
    lengths = episodes.column("length").to_numpy()
    with WorkerProcess("gear_data.ingest.videos.sampled_statistics") as worker:
        for spec in cameras:
            name = spec.name
            segments = VideoSegments(*(episodes.column(column).to_numpy() for column in segment_columns(name)))
            counts: Int64Array | str
            try:
                needed = _Needed.of(index, files, choose_sample(index, segments, lengths), depth=spec.depth is not None)
                counts = needed.counts_in(worker) if shareable else needed.counts()
            except GearError as error:  # of an index that is read now
                counts = error.message
            if isinstance(counts, str):
                message = f"a sample of the frames cannot be decoded: {counts}; the camera has no statistics"
                findings.add(Finding("video-statistics-left-out", message, column=name))
                continue
            found = frame_statistics(counts, spec.depth)
            frames = len(needed.sample)
            statistics[name] = ColumnStatistics(
                counts.sum(axis=1), found.mean, found.std, found.min, found.max, frames, found.quantiles
            )
    return statistics


@dataclass(frozen=True, eq=False)
class _Needed:
    """Everything that decoding a sample needs.

    Attributes:
        tables: the tables of the sample's files.
        files: the files.
        sample: the frames, with numbers of these files.
        depth: whether they are depth.
    """

    tables: tuple[pa.Table, pa.Table]
    files: Sequence[SourceFile]
    sample: FrameSample
    depth: bool = False

    @staticmethod
    def of(index: VideoIndex, files: Sequence[SourceFile], sample: FrameSample, *, depth: bool = False) -> _Needed:
        """Returns the part of an index and of its files that a sample needs."""
        numbers, places = np.unique(sample.file, return_inverse=True)
        index.load(numbers)
        tables = index_tables([index.file(number) for number in numbers.tolist()])
        sample = FrameSample(places.astype(np.int64), sample.frame)
        return _Needed(tables, [files[i] for i in numbers.tolist()], sample, depth)

    def counts(self) -> Int64Array | str:
        """Returns what `count_values` returns, or the reason why it cannot."""
        reader = FrameReader(
            VideoIndex(*self.tables, "sample"), SourcePackets(self.files), DecodeOptions(cache_bytes=0, strict=True)
        )
        try:
            return count_values(reader, self.sample, depth=self.depth)
        except GearError as error:
            return error.message
        except MemoryError:
            return "too little memory"

    def counts_in(self, worker: WorkerProcess) -> Int64Array | str:
        """Returns `counts` of a worker process, or the reason why it cannot."""
        seconds = _SECONDS + _SECONDS_PER_FRAME * len(self.sample)
        try:
            counts: Int64Array | str = worker.ask((self.tables, self.files, self.sample, self.depth), seconds)
            return counts
        except WorkerEndedError as error:
            return str(error)


if __name__ == "__main__":
    limit_memory(_MEMORY_BYTES)
    with Connection(int(sys.argv[1])) as inherited, suppress(EOFError, OSError):
        while True:
            inherited.send(_Needed(*inherited.recv()).counts())
