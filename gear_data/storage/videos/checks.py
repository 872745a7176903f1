"""Checks of a dataset's video files, for `verify`."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pyarrow as pa

from gear_data.common.environment import usable_cores
from gear_data.common.extras import import_extra
from gear_data.common.paths import is_remote
from gear_data.common.private_folder import scratch_folder
from gear_data.errors import CorruptShardError, RemoteError
from gear_data.schema import Schema
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import FileEntry
from gear_data.storage.remote.object_store import ObjectStore
from gear_data.storage.videos.mapped import video_entry
from gear_data.video.index_tables import VideoIndex
from gear_data.video.indexing.check import check_file
from gear_data.video.indexing.indexer import SECONDS, SECONDS_PER_BYTE
from gear_data.video.indexing.worker_process import WorkerProcess
from gear_data.video.segments import VideoSegments, segment_columns, segment_digests

#: Remedy for a damaged video file.
_RESTORE = "restore the file, or convert again"
#: Further seconds that decoding may take. Decoding takes 2e-9 s for a pixel on one core.
_SECONDS_PER_PIXEL = 1e-7
_COPY_BYTES = 8 << 20


def stored_segments(schema: Schema, episodes: pa.Table, index: VideoIndex) -> dict[str, VideoSegments]:
    """Returns the segments of some episodes, with digests, by camera.

    Args:
        schema: schema of the dataset.
        episodes: rows of the episode table, as `read_episodes` checks it.
        index: the index of the dataset's video files.

    Raises:
        CorruptShardError: an episode has frames outside its file.
    """
    found = {}
    lengths = episodes.column("length").to_numpy()
    for spec in schema.videos:
        file, first = (episodes.column(name).to_numpy() for name in segment_columns(spec.name))
        inside = (file >= 0) & (file < len(index)) & (first >= 0)
        inside[inside] = lengths[inside] <= index.frame_counts[file[inside]] - first[inside]
        if not inside.all():
            episode = episodes.column("episode_id")[int(np.argmin(inside))]
            raise CorruptShardError(
                f"episode {episode} has frames outside its video file", column=spec.name, hint=_RESTORE
            )
        segments = VideoSegments(file, first)
        found[spec.name] = VideoSegments(file, first, segment_digests(segments, lengths, index))
    return found


def video_checks(
    files: DatasetFiles, index: VideoIndex, *, decode: bool
) -> Iterator[tuple[FileEntry, Callable[[], None]]]:
    """Yields each video file with a function that checks it.

    A file is compared with its checksum, and is indexed again. FFmpeg reads several files at once, each in a worker
    process. The function waits for the result.

    Args:
        files: files of the dataset.
        index: its video files.
        decode: whether to decode all frames.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    import_extra("av", "video")
    cores = usable_cores()
    count = min(cores, len(index))
    workers: SimpleQueue[WorkerProcess] = SimpleQueue()
    started = [WorkerProcess() for _ in range(count)]
    for each in started:
        workers.put(each)

    def check(number: int) -> None:
        worker = workers.get()
        try:
            _check(files, index, number, cores // count if decode else 0, worker)
        finally:
            workers.put(worker)

    pending: deque[Future[None]] = deque()
    numbers = iter(range(len(index)))
    threads = ThreadPoolExecutor(max(1, count), "gear-verify")
    try:
        for number in range(len(index)):
            for coming in islice(numbers, 2 * count - len(pending)):
                pending.append(threads.submit(check, coming))
            video = index.listed(number)
            yield FileEntry(video.file, video.size, video.checksum), pending.popleft().result
    finally:
        for waiting in pending:
            waiting.cancel()
        for each in started:
            each.kill()
        threads.shutdown()
        for each in started:
            each.close()


def _check(files: DatasetFiles, index: VideoIndex, number: int, threads: int, worker: WorkerProcess) -> None:
    """Checks a file in a worker process. `threads` decode all frames; 0: none is decoded."""
    with _local(files, video_entry(files, index, number)) as path:
        try:
            video = index.file(number)
        except RemoteError as failure:  # though the file was fetched
            raise CorruptShardError(failure.message, file=index.listed(number).file, hint=_RESTORE) from failure
        seconds = SECONDS + video.size * SECONDS_PER_BYTE
        if threads:
            seconds += video.num_frames * video.height * video.width * _SECONDS_PER_PIXEL
        error = worker.run(check_file, path, video, threads, file=str(path), seconds=seconds)
    if error is not None:
        raise error


@contextmanager
def _local(files: DatasetFiles, entry: FileEntry) -> Iterator[Path]:
    """Yields a local path of a file.

    A file at a URL that the dataset only links to is downloaded.
    """
    if not is_remote(entry.file):
        with files.local(entry) as path:
            yield path
        return
    folder, _, name = entry.file.rpartition("/")
    with scratch_folder() as scratch:
        path = scratch / "video"
        try:
            with (
                ObjectStore(folder).reader(name, entry.bytes) as source,
                typed_write_errors(path),
                path.open("wb") as file,
            ):
                shutil.copyfileobj(source, file, _COPY_BYTES)
        except RemoteError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise CorruptShardError("the file is missing", file=entry.file, hint=_RESTORE) from error
        yield path
